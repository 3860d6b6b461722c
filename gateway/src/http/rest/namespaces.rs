//! Namespaces.

use std::sync::Arc;

use axum::{extract::State, response::IntoResponse};
use mantle_types::{GroupId, NamespaceId};
use serde::{Deserialize, Serialize};

use super::{
    input::Input,
    output::{Answer, NamespaceView, document},
};
use crate::{
    disconnect::run_detached,
    http::{App, status},
    ops::namespaces::Creation,
};

/// A call without parameters.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoParameters {}

/// Parameters of `PUT /v1/ns/{ns}`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CreateParameters {
    /// The index group that will serve it.
    group: Option<u32>,
}

#[derive(Serialize)]
struct Namespaces {
    namespaces: Vec<NamespaceView>,
}

#[derive(Serialize)]
struct Created<'a> {
    name: &'a str,
    id: NamespaceId,
}

pub async fn list(State(app): State<Arc<App>>, input: Input) -> Answer {
    let input = input.verb("list_namespaces");
    input.query::<NoParameters>()?;
    let all = app.gateway.list_namespaces(&input.call).await?;
    document(status::DONE, &Namespaces { namespaces: all.into_iter().map(Into::into).collect() })
}

pub async fn create(State(app): State<Arc<App>>, input: Input) -> Answer {
    let input = input.verb("create_namespace");
    let CreateParameters { group } = input.query()?;
    let (gateway, call, name) = (app.gateway.clone(), input.call.clone(), input.ns.clone());
    let creation =
        run_detached(async move { gateway.create_namespace(&call, &name, group.map(GroupId)).await }).await?;
    match creation {
        Creation::Created(id) => document(status::CREATED, &Created { name: &input.ns, id }),
        Creation::Existing(id) => document(status::DONE, &Created { name: &input.ns, id }),
    }
}

pub async fn remove(State(app): State<Arc<App>>, input: Input) -> Answer {
    let input = input.verb("delete_namespace");
    input.query::<NoParameters>()?;
    let gateway = app.gateway.clone();
    run_detached(async move { gateway.delete_namespace(&input.call, &input.ns).await }).await?;
    Ok(status::REMOVED.into_response())
}
