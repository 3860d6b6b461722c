//! Background operations. The removal of a directory with everything below it begins one.

use std::sync::Arc;

use axum::{
    extract::{Path, State},
    http::{HeaderValue, header},
};
use mantle_types::{Error, ErrorCode};
use uuid::Uuid;

use super::{
    input::Input,
    namespaces::NoParameters,
    output::{Answer, OperationView, document},
};
use crate::{
    disconnect::run_detached,
    http::{App, status},
};

/// Removes a directory with everything below it.
pub(super) async fn remove_tree(app: Arc<App>, input: Input) -> Answer {
    let input = input.verb("remove_tree");
    let gateway = app.gateway.clone();
    let begun =
        run_detached(async move { gateway.remove_tree(&input.call, &input.ns, input.directory_key()).await }).await?;
    let location = format!("/v1/operations/{}", begun.id);
    let mut answer = document(status::ACCEPTED, &OperationView::from(begun))?;
    let location = HeaderValue::try_from(location).map_err(|_| Error::from(ErrorCode::Internal))?;
    answer.headers_mut().insert(header::LOCATION, location);
    Ok(answer)
}

pub async fn operation(State(app): State<Arc<App>>, Path(id): Path<String>, input: Input) -> Answer {
    let input = input.verb("operation");
    input.query::<NoParameters>()?;
    // A text that is no id names no operation.
    let id = Uuid::parse_str(&id).map_err(|_| Error::new(ErrorCode::NotFound, "there is no such operation"))?;
    document(status::DONE, &OperationView::from(app.gateway.operation(&input.call, id).await?))
}
