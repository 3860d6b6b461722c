//! The migration of bytes into the gateway's volume.

use std::sync::Arc;

use axum::extract::State;
use serde::Deserialize;

use super::{
    input::Input,
    output::{Answer, document},
};
use crate::http::{App, status};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Parameters {
    /// Only of this namespace.
    namespace: Option<String>,
}

pub async fn show(State(app): State<Arc<App>>, input: Input) -> Answer {
    let input = input.without_parameters("migration")?;
    document(status::DONE, &app.gateway.migration(&input.call)?)
}

pub async fn begin(State(app): State<Arc<App>>, input: Input) -> Answer {
    let input = input.verb("migrate");
    let Parameters { namespace } = input.query()?;
    document(status::ACCEPTED, &app.gateway.begin_migration(&input.call, namespace.as_deref()).await?)
}
