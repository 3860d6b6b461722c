//! The requests that travel in a stream of numbered calls: waits, and prepares of renames.

use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use crate::{
    Stub,
    call_stream::StreamedCall,
    proto::{
        AwaitRequest, AwaitResponse, AwaitsRequest, AwaitsResponse, NumberedAwait, NumberedPrepare,
        PrepareRenameRequest, PrepareRenameResponse, PrepareRenamesRequest, PrepareRenamesResponse,
    },
};

type Called<T> = Result<Response<T>, Status>;

impl StreamedCall for AwaitRequest {
    type Answer = AwaitResponse;
    type Message = AwaitsRequest;
    type Answers = AwaitsResponse;

    fn message(begin: Vec<(u64, Self)>, end: Vec<u64>) -> AwaitsRequest {
        let numbered = |(number, request)| NumberedAwait { number, request: Some(request) };
        AwaitsRequest { begin: begin.into_iter().map(numbered).collect(), end }
    }

    fn answers(answers: AwaitsResponse) -> impl Iterator<Item = (u64, Option<AwaitResponse>)> + Send {
        answers.answers.into_iter().map(|numbered| (numbered.number, numbered.answer))
    }

    async fn open(
        stub: &mut Stub,
        messages: UnboundedReceiverStream<AwaitsRequest>,
    ) -> Called<Streaming<AwaitsResponse>> {
        stub.awaits(messages).await
    }

    async fn call(mut stub: Stub, request: Request<Self>) -> Called<AwaitResponse> {
        // The method's name is a keyword, so the generator renamed it.
        stub.r#await(request).await
    }
}

impl StreamedCall for PrepareRenameRequest {
    type Answer = PrepareRenameResponse;
    type Message = PrepareRenamesRequest;
    type Answers = PrepareRenamesResponse;

    fn message(begin: Vec<(u64, Self)>, end: Vec<u64>) -> PrepareRenamesRequest {
        let numbered = |(number, request)| NumberedPrepare { number, request: Some(request) };
        PrepareRenamesRequest { begin: begin.into_iter().map(numbered).collect(), end }
    }

    fn answers(answers: PrepareRenamesResponse) -> impl Iterator<Item = (u64, Option<PrepareRenameResponse>)> + Send {
        answers.answers.into_iter().map(|numbered| (numbered.number, numbered.answer))
    }

    async fn open(
        stub: &mut Stub,
        messages: UnboundedReceiverStream<PrepareRenamesRequest>,
    ) -> Called<Streaming<PrepareRenamesResponse>> {
        stub.prepare_renames(messages).await
    }

    async fn call(mut stub: Stub, request: Request<Self>) -> Called<PrepareRenameResponse> {
        stub.prepare_rename(request).await
    }
}
