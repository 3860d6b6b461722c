//! Namespaces.

use std::sync::Arc;

use axum::{extract::State, response::IntoResponse};
use mantle_types::{
    GroupId, NamespaceId,
    limits::{MODE_MAX, UMASK_MAX},
};
use serde::{Deserialize, Serialize};

use super::{
    input::{Input, Json, octal},
    output::{Answer, document},
};
use crate::{
    disconnect::run_detached,
    http::{App, status},
    ops::namespaces::{Creation, NewNamespace},
    store::Namespace,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CreateParameters {
    /// The index group that will serve it.
    group: Option<u32>,
    /// Of its root, octal.
    mode: Option<String>,
    umask: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SettingsBody {
    umask: String,
}

#[derive(Serialize)]
struct Namespaces {
    namespaces: Vec<Namespace>,
}

#[derive(Serialize)]
struct Created<'a> {
    name: &'a str,
    id: NamespaceId,
}

pub async fn list(State(app): State<Arc<App>>, input: Input) -> Answer {
    let input = input.without_parameters("list_namespaces")?;
    document(status::DONE, &Namespaces { namespaces: app.gateway.list_namespaces(&input.call).await? })
}

pub async fn create(State(app): State<Arc<App>>, input: Input) -> Answer {
    let input = input.verb("create_namespace");
    let CreateParameters { group, mode, umask } = input.query()?;
    let new = NewNamespace {
        group: group.map(GroupId),
        mode: mode.map(|text| octal("mode", &text, MODE_MAX)).transpose()?,
        umask: umask.map(|text| octal("umask", &text, UMASK_MAX)).transpose()?,
    };
    let (gateway, call, name) = (app.gateway.clone(), input.call.clone(), input.ns.clone());
    let creation = run_detached(async move { gateway.create_namespace(&call, &name, &new).await });
    let (status, id) = match creation.await? {
        Creation::Created(id) => (status::CREATED, id),
        Creation::Existing(id) => (status::DONE, id),
    };
    document(status, &Created { name: &input.ns, id })
}

pub async fn change(State(app): State<Arc<App>>, input: Input, Json(body): Json<SettingsBody>) -> Answer {
    let input = input.without_parameters("set_umask")?;
    let umask = octal("umask", &body.umask, UMASK_MAX)?;
    let gateway = app.gateway.clone();
    run_detached(async move { gateway.set_umask(&input.call, &input.ns, umask).await }).await?;
    Ok(status::REMOVED.into_response())
}

pub async fn remove(State(app): State<Arc<App>>, input: Input) -> Answer {
    let input = input.without_parameters("delete_namespace")?;
    let gateway = app.gateway.clone();
    run_detached(async move { gateway.delete_namespace(&input.call, &input.ns).await }).await?;
    Ok(status::REMOVED.into_response())
}
