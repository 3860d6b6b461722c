//! Background operations. The removal of a directory with everything below it begins one.

use std::sync::Arc;

use axum::{
    extract::{Path, State},
    http::header,
    response::IntoResponse,
};
use mantle_types::{Error, ErrorCode};
use uuid::Uuid;

use super::{
    input::Input,
    output::{Answer, document},
};
use crate::{
    disconnect::run_detached,
    http::{App, status},
};

pub(super) async fn remove_tree(app: Arc<App>, input: Input) -> Answer {
    let input = input.verb("remove_tree");
    let gateway = app.gateway.clone();
    let begun =
        run_detached(async move { gateway.remove_tree(&input.call, &input.ns, input.directory_key()).await }).await?;
    let location = [(header::LOCATION, format!("/v1/operations/{}", begun.id))];
    Ok((location, document(status::ACCEPTED, &begun)?).into_response())
}

pub async fn operation(State(app): State<Arc<App>>, Path(id): Path<String>, input: Input) -> Answer {
    let input = input.without_parameters("operation")?;
    // A text that is no id names no operation.
    let id = Uuid::parse_str(&id).map_err(|_| Error::new(ErrorCode::NotFound, "there is no such operation"))?;
    document(status::DONE, &app.gateway.operation(&input.call, id).await?)
}
