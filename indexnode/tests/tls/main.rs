//! A group with certificates: who may call what, and how a group changes to TLS while it serves.
//!
//! Needs `MANTLE_TEST_DATABASE_URL`, and `-- --ignored`; `tests/run.py` runs it.
// In a test a failed unwrap is a failed test.
#![allow(clippy::unwrap_used)]

mod forged;
mod scene;
#[allow(dead_code)]
#[path = "../support/mod.rs"]
mod support;

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::AtomicUsize},
};

use mantle_index_client::{
    Status,
    proto::{self as index, index_client::IndexClient},
};
use mantle_indexnode::proto::peer::{self, peer_client::PeerClient};
use mantle_tls::{Phase, Tls, testing::Authority};
use scene::{ADMINISTRATOR, GATEWAY, HOST, NAMESPACE, PEER, Scene, append, channel, metrics, value};
use support::{eventually, load::Load};
use tonic::{Code, transport::Channel};

/// The code of each call with a channel.
async fn codes(channel: Channel, status: &Status) -> BTreeMap<&'static str, Code> {
    let (mut index, mut replica) = (IndexClient::new(channel.clone()), PeerClient::new(channel));
    let mut found = BTreeMap::new();
    macro_rules! calls {
        ($client:ident: $($method:ident($request:expr))*) => {
            $({
                let code = $client.$method($request).await.map_or_else(|status| status.code(), |_| Code::Ok);
                found.insert(stringify!($method), code);
            })*
        };
    }
    let message = || append(status, (status.term, 0), None);
    calls! { index:
        resolve(tokio_stream::iter([index::ResolveRequest::default()]))
        prepare_rename(index::PrepareRenameRequest::default())
        prepare_renames(tokio_stream::iter([index::PrepareRenamesRequest::default()]))
        release_rename(index::ReleaseRenameRequest::default())
        r#await(index::AwaitRequest::default())
        awaits(tokio_stream::iter([index::AwaitsRequest::default()]))
        status(index::StatusRequest { group: 1 })
        members(index::MembersRequest { group: 1 })
        change_member(index::ChangeMemberRequest::default())
        directories(index::DirectoriesRequest { group: 1, ..index::DirectoriesRequest::default() })
    }
    calls! { replica:
        describe(peer::DescribeRequest { group: 1, node_id: 0 })
        join(peer::JoinRequest::default())
        read_index(peer::ReadIndexRequest::default())
        read_indexes(tokio_stream::iter([peer::ReadIndexRequest::default()]))
        append(message())
        appends(tokio_stream::iter([message()]))
        vote(message())
        pre_vote(message())
        transfer_leader(message())
        install_snapshot(tokio_stream::iter([peer::SnapshotPart::default()]))
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs MANTLE_TEST_DATABASE_URL"]
async fn replicas_take_only_the_calls_of_a_role() {
    let mut scene = Scene::strict().await;
    let (address, status) = (scene.group.replicas[0].address.clone(), scene.group.status(0).await.unwrap());
    let with = |name, of| channel(&address, Some(scene.tls(name, of)));
    const ALL: usize = 20;

    // Neither TLS nor a certificate: everything is refused, by a code that says why.
    let found = codes(channel(&address, None), &status).await;
    assert_eq!(found.values().filter(|code| **code == Code::Unauthenticated).count(), ALL, "{found:?}");

    // A certificate of the authority without a role, as etcd or PostgreSQL may have.
    let found = codes(with("other", ("database", HOST)), &status).await;
    assert_eq!(found.values().filter(|code| **code == Code::PermissionDenied).count(), ALL, "{found:?}");

    for (name, of, allowed) in [
        (
            "gateway",
            GATEWAY,
            &["await", "awaits", "prepare_rename", "prepare_renames", "release_rename", "resolve", "status"][..],
        ),
        ("dba", ADMINISTRATOR, &["await", "awaits", "change_member", "directories", "members", "status"]),
    ] {
        let found = codes(with(name, of), &status).await;
        let may: Vec<_> = found.iter().filter(|(_, code)| **code != Code::PermissionDenied).collect();
        let names: Vec<_> = may.iter().map(|(method, _)| method.trim_start_matches("r#")).collect();
        let mut names: Vec<_> = names.into_iter().collect();
        names.sort_unstable();
        assert_eq!(names, allowed, "{name}: {found:?}");
        assert!(may.iter().all(|(_, code)| **code != Code::Unauthenticated), "{found:?}");
    }

    // Of the calls of gateways and administrators a peer may make one. (Whose messages of Raft count is another test.)
    let found = codes(with("peer", ("mantle-peer", "127.0.0.2")), &status).await;
    let of_others = ["resolve", "prepare_rename", "prepare_renames", "release_rename", "r#await", "awaits", "status"];
    let of_others = of_others.into_iter().chain(["members", "change_member", "directories"]);
    let may: Vec<_> = of_others.filter(|method| found[method] != Code::PermissionDenied).collect();
    assert_eq!(may, ["status"], "{found:?}");

    let ns = scene.database.create_namespace(NAMESPACE).await;
    let (id, key) = scene.database.mkdir(ns, ns, "d").await;
    scene.group.client.await_request(key, std::time::Duration::from_secs(20)).await.unwrap();
    scene.group.assert_everywhere(NAMESPACE, &["d"], id).await;
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs MANTLE_TEST_DATABASE_URL"]
async fn replicas_change_to_tls_while_they_serve() {
    let mut scene = Scene::new().await;
    scene.group.start_all();
    scene.group.settled().await;
    let ns = scene.database.create_namespace(NAMESPACE).await;
    let down = Arc::new(AtomicUsize::new(usize::MAX));
    let load = Load::start(&scene.database, &scene.group, (NAMESPACE, ns), down.clone()).await;
    load.goes_on().await;

    scene.configure("accept");
    scene.restart_each(&down).await;
    load.goes_on().await;
    // Replicas and clients still connect without TLS, and each replica counts that.
    for replica in &scene.group.replicas {
        eventually("plain connections", || async {
            let page = metrics(&replica.http_address).await;
            value(&page, "mantle_tls_open_connections{kind=\"plain\"}").filter(|open| *open >= 1.0)
        })
        .await;
        let page = metrics(&replica.http_address).await;
        let made = value(&page, "mantle_tls_connections_total{kind=\"plain\"}");
        assert!(made.is_some_and(|made| made >= 1.0), "{page}");
    }
    load.end().await;

    // The gateways connect with TLS now; the replicas do so one by one.
    let tls = scene.tls("gateway", GATEWAY);
    scene.group.use_tls(tls);
    let ns = scene.database.create_namespace("later").await;
    let load = Load::start(&scene.database, &scene.group, ("later", ns), down.clone()).await;
    load.goes_on().await;
    scene.configure("connect");
    scene.restart_each(&down).await;
    load.goes_on().await;

    // What says that the last phase may come: nobody has a plain connection. (Counted since the restart.)
    for i in 0..scene.group.replicas.len() {
        eventually("no plain connection", || async {
            let page = metrics(&scene.group.replicas[i].http_address).await;
            (value(&page, "mantle_tls_open_connections{kind=\"plain\"}") == Some(0.0)
                || value(&page, "mantle_tls_open_connections{kind=\"plain\"}").is_none())
            .then_some(())
        })
        .await;
        let page = metrics(&scene.group.replicas[i].http_address).await;
        assert!(value(&page, "mantle_tls_open_connections{kind=\"tls\"}").is_some_and(|open| open >= 2.0), "{page}");
        assert!(value(&page, "mantle_tls_certificate_days{file=\"certificate\"}").is_some_and(|days| days > 100.0));
    }
    scene.configure("strict");
    scene.restart_each(&down).await;
    load.goes_on().await;
    assert!(load.end().await > 0);
    scene.end().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs MANTLE_TEST_DATABASE_URL"]
async fn replicas_replace_their_authority_without_a_restart() {
    let mut scene = Scene::new().await;
    scene.configure("strict");
    let client_files = scene.certificate("client", GATEWAY);
    let client = Tls::load(client_files.settings(Phase::Strict)).unwrap();
    scene.group.use_tls(client.clone());
    scene.group.start_all();
    scene.group.settled().await;
    let ns = scene.database.create_namespace(NAMESPACE).await;
    let down = Arc::new(AtomicUsize::new(usize::MAX));
    let load = Load::start(&scene.database, &scene.group, (NAMESPACE, ns), down).await;
    load.goes_on().await;

    let (new, old) = (Authority::default(), &scene.authority);
    let all = || scene.replicas.iter().chain([&client_files]);
    let reloaded = async |times: f64| {
        for replica in &scene.group.replicas {
            eventually("new certificates", || async {
                let page = metrics(&replica.http_address).await;
                (value(&page, "mantle_tls_reloads_total{file=\"authority\"}") >= Some(times)).then_some(())
            })
            .await;
        }
        client.reload().unwrap();
    };
    all().for_each(|files| files.trust(&[old, &new]));
    reloaded(1.0).await;
    load.goes_on().await;
    // Key and certificate are two files: between them the pair does not fit, and the old one stays.
    scene.replicas.iter().for_each(|files| files.replace(&new, PEER, |_| ()));
    client_files.replace(&new, GATEWAY, |_| ());
    reloaded(2.0).await;
    load.goes_on().await;
    all().for_each(|files| files.trust(&[&new]));
    reloaded(3.0).await;
    load.goes_on().await;
    assert!(load.end().await > 0);

    // The old authority's certificates are worth nothing now.
    let outdated = scene.certificate("outdated", GATEWAY);
    outdated.trust(&[&new]);
    let outdated = Tls::load(outdated.settings(Phase::Strict)).unwrap();
    let address = &scene.group.replicas[0].address;
    let refused = IndexClient::new(channel(address, Some(outdated))).status(index::StatusRequest { group: 1 }).await;
    // By TLS, before there is an answer.
    assert!(matches!(refused.unwrap_err().code(), Code::Unavailable | Code::Cancelled | Code::Unknown));
    let current = IndexClient::new(channel(address, Some(client))).status(index::StatusRequest { group: 1 }).await;
    current.unwrap();
    scene.end().await;
}
