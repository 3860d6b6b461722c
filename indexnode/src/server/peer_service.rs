//! The service between replicas.

use std::{io::Write, path::PathBuf, sync::Arc};

use futures::{StreamExt, stream::BoxStream};
use mantle_tls::Connection;
use mantle_types::GroupId;
use openraft::{
    raft::{AppendEntriesRequest, AppendEntriesResponse, TransferLeaderRequest, VoteRequest},
    storage::Snapshot,
};
use serde::{Serialize, de::DeserializeOwned};
use tonic::{Request, Response, Status, Streaming};

use crate::{
    failpoints::{self, Failpoint},
    groups::Groups,
    membership::{join, senders, view},
    node::Node,
    proto::peer::{
        Agreement, DescribeRequest, DescribeResponse, Destination, JoinRequest, JoinResponse, RaftMessage,
        ReadIndexRequest, ReadIndexResponse, SnapshotPart, join_response::State, peer_server::Peer,
    },
    raft::{
        TypeConfig,
        fault::Fault,
        fingerprint::Fingerprint,
        network::{decode, encode},
        read_index::local_read_index,
        types::Vote,
    },
};

/// The peer service of one process; clones share it.
#[derive(Clone)]
pub struct PeerService {
    groups: Arc<Groups>,
}

type Answer = Result<Response<RaftMessage>, Status>;

impl PeerService {
    /// The service over the replicas of the process.
    pub fn new(groups: Arc<Groups>) -> Self {
        Self { groups }
    }

    /// The node that a message is addressed to; an error if another node is at this address now.
    fn destination(&self, to: Option<&Destination>) -> Result<Arc<Node>, Status> {
        let node = self.node(to.map_or(0, |to| to.group))?;
        match to {
            Some(to) if to.cluster_id == node.cluster_id && to.node_id == node.node_id => Ok(node),
            _ => Err(Status::failed_precondition("another node is at this address now")),
        }
    }

    fn node(&self, group: u32) -> Result<Arc<Node>, Status> {
        self.groups.node(GroupId(group)).map_err(|e| Status::unavailable(e.detail()))
    }

    /// The addressed node and the decoded request of a Raft message. An error if a member did not send it, or if the node is
    /// unfit to promise anything (P48).
    fn open<T: SpeaksFor + DeserializeOwned>(
        &self,
        message: &RaftMessage,
        from: Option<&Connection>,
    ) -> Result<(Arc<Node>, T), Status> {
        let node = self.destination(message.to.as_ref())?;
        let request: T = decode(&message.body).map_err(|e| Status::invalid_argument(e.to_string()))?;
        senders::check(&node, from, request.vote())?;
        node.learn_promises(&message.promises);
        check_fit(&node)?;
        Ok((node, request))
    }

    fn open_for_vote(&self, request: &Request<RaftMessage>) -> Result<(Arc<Node>, VoteRequest<TypeConfig>), Status> {
        let (node, request) = self.open(request.get_ref(), request.extensions().get())?;
        if !node.may_vote() {
            return Err(Status::unavailable("restarted a moment ago; an older leader may still hold a lease"));
        }
        Ok((node, request))
    }

    async fn answer_read_index(&self, request: &ReadIndexRequest) -> Result<ReadIndexResponse, Status> {
        let node = self.groups.node(GroupId(request.group)).ok().filter(|node| node.cluster_id == request.cluster_id);
        let node = node.ok_or_else(|| Status::failed_precondition("this replica is not of that cluster"))?;
        let leads = |log_index| ReadIndexResponse { is_leader: true, log_index, ..ReadIndexResponse::default() };
        if failpoints::is_hit(Failpoint::ReadIndexOfOldLeader)
            && let Some(log_index) = node.unconfirmed_read_index()
        {
            return Ok(leads(log_index));
        }
        let mut difference = String::new();
        if node.raft.is_leader() {
            match local_read_index(&node.raft, &node.doubt).await {
                Ok(log_index) => {
                    node.given.note(log_index);
                    let compare = |theirs| node.state.fingerprints.compare(&Fingerprint::from(theirs), log_index);
                    let unspecified = (Agreement::Unspecified, String::new());
                    let (agreement, difference) = request.fingerprint.map_or(unspecified, compare);
                    let settled = if request.settles { node.settled.log_index(&node.state).await.ok() } else { None };
                    return Ok(ReadIndexResponse {
                        agreement: agreement.into(),
                        difference,
                        settled: settled.is_some(),
                        ..leads(log_index.max(settled.unwrap_or(0)))
                    });
                }
                Err(e) => e.detail().clone_into(&mut difference),
            }
        }
        let leader_address = node.leader().map(|(_, address)| address).unwrap_or_default();
        Ok(ReadIndexResponse { leader_address, difference, ..ReadIndexResponse::default() })
    }

    async fn answer_append(&self, message: &RaftMessage, from: Option<&Connection>) -> Result<RaftMessage, Status> {
        let (node, rpc): (_, AppendEntriesRequest<TypeConfig>) = self.open(message, from)?;
        node.check_append(&rpc).await.map_err(failed)?;
        let appended = node.raft.append_entries(rpc).await.map_err(failed)?;
        if !matches!(appended, AppendEntriesResponse::HigherVote(_)) {
            node.note_leader_contact();
        }
        if failpoints::is_hit(Failpoint::AnswerHighestTerm) {
            let forged = Vote::new(u64::MAX - 1, node.node_id);
            return message_of(&AppendEntriesResponse::<TypeConfig>::HigherVote(forged));
        }
        message_of(&appended)
    }
}

/// A message of Raft speaks for a leader or a candidate.
trait SpeaksFor {
    fn vote(&self) -> &Vote;
}

impl SpeaksFor for AppendEntriesRequest<TypeConfig> {
    fn vote(&self) -> &Vote {
        &self.vote
    }
}

impl SpeaksFor for VoteRequest<TypeConfig> {
    fn vote(&self) -> &Vote {
        &self.vote
    }
}

impl SpeaksFor for TransferLeaderRequest<TypeConfig> {
    fn vote(&self) -> &Vote {
        self.from_leader()
    }
}

/// An error if the node has a fault for which it may promise nothing: neither a vote nor entries (P48, P49).
fn check_fit(node: &Node) -> Result<(), Status> {
    let fault = node.fault.get().filter(Fault::forbids_promises);
    fault.map_or(Ok(()), |fault| Err(Status::unavailable(fault.to_string())))
}

fn message_of<T: Serialize>(value: &T) -> Result<RaftMessage, Status> {
    let body = encode(value).map_err(|e| Status::internal(e.to_string()))?;
    Ok(RaftMessage { body, ..RaftMessage::default() })
}

fn answer<T: Serialize>(value: &T) -> Answer {
    message_of(value).map(Response::new)
}

fn failed(error: impl std::fmt::Display) -> Status {
    Status::unavailable(error.to_string())
}

#[tonic::async_trait]
impl Peer for PeerService {
    async fn describe(&self, request: Request<DescribeRequest>) -> Result<Response<DescribeResponse>, Status> {
        let replica =
            self.groups.replica(GroupId(request.get_ref().group)).map_err(|e| Status::not_found(e.detail()))?;
        let (identity, node) = replica.current();
        let mut answer = view::describe(replica.group, &identity, node.as_deref());
        let caller = request.get_ref().node_id;
        answer.promise = node.filter(|_| caller != 0).map(|node| node.promises.of(caller).to_message(caller));
        answer.not_ready = replica.readiness.why_not().unwrap_or_default();
        Ok(Response::new(answer))
    }

    async fn join(&self, request: Request<JoinRequest>) -> Result<Response<JoinResponse>, Status> {
        let Ok(node) = self.node(request.get_ref().group) else {
            let state = State::NotLeader.into();
            return Ok(Response::new(JoinResponse { state, ..JoinResponse::default() }));
        };
        let identity = senders::identity(request.extensions().get());
        join::serve(&node, request.get_ref(), identity).await.map(Response::new)
    }

    async fn read_index(&self, request: Request<ReadIndexRequest>) -> Result<Response<ReadIndexResponse>, Status> {
        self.answer_read_index(request.get_ref()).await.map(Response::new)
    }

    type ReadIndexesStream = BoxStream<'static, Result<ReadIndexResponse, Status>>;

    async fn read_indexes(
        &self,
        request: Request<Streaming<ReadIndexRequest>>,
    ) -> Result<Response<Self::ReadIndexesStream>, Status> {
        let service = self.clone();
        let answers = request.into_inner().then(move |request| {
            let service = service.clone();
            async move { service.answer_read_index(&request?).await }
        });
        Ok(Response::new(answers.boxed()))
    }

    async fn append(&self, request: Request<RaftMessage>) -> Answer {
        self.answer_append(request.get_ref(), request.extensions().get()).await.map(Response::new)
    }

    type AppendsStream = BoxStream<'static, Result<RaftMessage, Status>>;

    async fn appends(&self, request: Request<Streaming<RaftMessage>>) -> Result<Response<Self::AppendsStream>, Status> {
        let service = self.clone();
        let from = request.extensions().get::<Connection>().cloned();
        let answers = request.into_inner().then(move |message| {
            let (service, from) = (service.clone(), from.clone());
            async move { service.answer_append(&message?, from.as_ref()).await }
        });
        Ok(Response::new(answers.boxed()))
    }

    async fn vote(&self, request: Request<RaftMessage>) -> Answer {
        let (node, rpc) = self.open_for_vote(&request)?;
        let mut vote = message_of(&node.raft.vote(rpc).await.map_err(failed)?)?;
        vote.is_unconfirmed = !node.doubt.is_confirmed();
        Ok(Response::new(vote))
    }

    async fn pre_vote(&self, request: Request<RaftMessage>) -> Answer {
        let (node, rpc) = self.open_for_vote(&request)?;
        answer(&node.raft.pre_vote(rpc).await.map_err(failed)?)
    }

    async fn transfer_leader(&self, request: Request<RaftMessage>) -> Answer {
        let opened = self.open(request.get_ref(), request.extensions().get())?;
        let (node, rpc): (_, TransferLeaderRequest<TypeConfig>) = opened;
        answer(&node.raft.handle_transfer_leader(rpc).await.map_err(failed)?)
    }

    async fn install_snapshot(&self, request: Request<Streaming<SnapshotPart>>) -> Answer {
        let from = request.extensions().get::<Connection>().cloned();
        let mut parts = request.into_inner();
        let head = parts.message().await?.ok_or_else(|| Status::invalid_argument("an empty snapshot"))?;
        let node = self.destination(head.to.as_ref())?;
        let vote: Vote = decode(&head.vote).map_err(|e| Status::invalid_argument(e.to_string()))?;
        senders::check(&node, from.as_ref(), &vote)?;
        check_fit(&node)?;
        let path = receive(&node, parts).await?;
        let (meta, snapshot) = node.snapshots.received(path).map_err(failed)?;
        node.note_leader_contact();
        let installed = node.raft.install_full_snapshot(vote, Snapshot { meta, snapshot }).await;
        answer(&installed.map_err(failed)?)
    }
}

/// Writes the parts of a snapshot to a file, which is removed if they are incomplete.
async fn receive(node: &Node, mut parts: Streaming<SnapshotPart>) -> Result<PathBuf, Status> {
    let (mut file, path) = node.snapshots.receive().map_err(failed)?;
    let copied = async {
        while let Some(part) = parts.message().await? {
            let written = node.disk.run(move || file.write_all(&part.data).map(|()| file));
            file = written.await.map_err(failed)?;
        }
        Ok(())
    };
    let copied: Result<(), Status> = copied.await;
    if copied.is_err()
        && let Err(e) = std::fs::remove_file(&path)
    {
        tracing::warn!(error = %e, "cannot remove a snapshot that was cut short");
    }
    copied.map(|()| path)
}
