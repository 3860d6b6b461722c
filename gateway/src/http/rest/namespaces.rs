//! Namespaces.

use std::sync::Arc;

use axum::{extract::State, response::IntoResponse};
use mantle_types::{GroupId, NamespaceId};
use serde::{Deserialize, Serialize};

use super::{
    input::Input,
    output::{Answer, document},
};
use crate::{
    disconnect::run_detached,
    http::{App, status},
    ops::namespaces::Creation,
    store::Namespace,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CreateParameters {
    /// The index group that will serve it.
    group: Option<u32>,
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
    let CreateParameters { group } = input.query()?;
    let (gateway, call, name) = (app.gateway.clone(), input.call.clone(), input.ns.clone());
    let creation = run_detached(async move { gateway.create_namespace(&call, &name, group.map(GroupId)).await });
    let (status, id) = match creation.await? {
        Creation::Created(id) => (status::CREATED, id),
        Creation::Existing(id) => (status::DONE, id),
    };
    document(status, &Created { name: &input.ns, id })
}

pub async fn remove(State(app): State<Arc<App>>, input: Input) -> Answer {
    let input = input.without_parameters("delete_namespace")?;
    let gateway = app.gateway.clone();
    run_detached(async move { gateway.delete_namespace(&input.call, &input.ns).await }).await?;
    Ok(status::REMOVED.into_response())
}
