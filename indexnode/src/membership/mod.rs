//! Membership of a Raft cluster: a replica joins a working cluster, or founds one if none can have a quorum any more.
//!
//! Invariant: a cluster is founded only if every configured replica has answered and no cluster among them can have a quorum,
//! and only by the replica whose raise of the epoch PostgreSQL accepted (P22). A replica joins under a new id, first as a
//! learner. The decision is a pure function of the replicas' answers.

pub mod admin;
pub mod bootstrap;
pub mod join;
pub mod promises;
pub mod rules;
pub mod senders;
pub mod view;

use std::collections::{BTreeSet, HashMap};

use view::View;

use crate::node::Node;

/// The next step of an empty replica.
#[derive(Debug, PartialEq, Eq)]
pub enum Decision {
    /// Join one of these clusters; PostgreSQL decides if there are several.
    Join(Vec<String>),
    Found,
    Wait(&'static str),
}

/// The leader of a cluster, if one of its replicas answered that it leads.
pub fn leader_of<'a>(views: &'a [View], cluster_id: &str) -> Option<&'a View> {
    let leaders = views.iter().filter(|v| v.cluster_id.as_deref() == Some(cluster_id) && v.leads());
    // A term may have two leaders, one after the other: the greater id is the later.
    leaders.max_by_key(|v| (v.term, v.node_id))
}

/// The decision of the empty replica at address `own`. `views` has the answers of all replicas, its own included.
pub fn decide(own: &str, configured: &[String], views: &[View]) -> Decision {
    let led: BTreeSet<String> = views.iter().filter(|v| v.leads()).filter_map(|v| v.cluster_id.clone()).collect();
    if !led.is_empty() {
        return Decision::Join(led.into_iter().collect());
    }
    if !configured.iter().all(|address| views.iter().any(|v| v.address == *address)) {
        return Decision::Wait("not every replica answers");
    }
    if clusters(views).into_iter().any(|cluster| can_have_quorum(&cluster)) {
        return Decision::Wait("a cluster is electing its leader");
    }
    if views.iter().any(|v| v.cluster_id.is_some() && v.voters.is_empty()) {
        return Decision::Wait("a replica is joining a cluster or founding one");
    }
    let lowest = views.iter().filter(|v| v.cluster_id.is_none()).map(|v| v.address.as_str()).min();
    if lowest == Some(own) { Decision::Found } else { Decision::Wait("another replica founds the cluster") }
}

/// True if the other voters of a node's group have a leader and a quorum without it.
pub async fn others_have_quorum(node: &Node) -> bool {
    let views = view::poll(&node.config, node.group, &node.peers, None).await;
    let follows = |v: &&View| v.cluster_id.as_deref() == Some(&node.cluster_id) && v.leader_id != 0;
    let alive: BTreeSet<_> = views.iter().filter(follows).map(|v| v.node_id).filter(|id| *id != node.node_id).collect();
    node.membership().get_joint_config().iter().all(|voters| voters.intersection(&alive).count() > voters.len() / 2)
}

/// The answers of members with a log, by cluster.
fn clusters(views: &[View]) -> Vec<Vec<&View>> {
    let mut clusters: HashMap<&str, Vec<&View>> = HashMap::new();
    for view in views.iter().filter(|v| !v.voters.is_empty()) {
        if let Some(cluster_id) = &view.cluster_id {
            clusters.entry(cluster_id).or_default().push(view);
        }
    }
    clusters.into_values().collect()
}

/// True if these members of a cluster can elect a leader, by the newest membership that any of them knows.
fn can_have_quorum(members: &[&View]) -> bool {
    let Some(newest) = members.iter().max_by_key(|v| v.membership_index) else { return false };
    newest.voters.iter().all(|set| {
        let present = set.iter().filter(|id| members.iter().any(|v| v.node_id == **id)).count();
        present > set.len() / 2
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn empty(address: &str, node_id: u64) -> View {
        View { address: address.into(), node_id, ..View::default() }
    }

    fn member(address: &str, node_id: u64, cluster: &str, voters: &[u64], leader: u64) -> View {
        View {
            address: address.into(),
            node_id,
            cluster_id: Some(cluster.into()),
            voters: vec![voters.iter().copied().collect()],
            membership_index: voters.len() as u64,
            term: 1,
            leader_id: leader,
        }
    }

    fn addresses() -> Vec<String> {
        ["a", "b", "c"].map(String::from).to_vec()
    }

    #[test]
    fn the_lowest_of_three_empty_replicas_founds() {
        let views = [empty("a", 1), empty("b", 2), empty("c", 3)];
        assert_eq!(decide("a", &addresses(), &views), Decision::Found);
        assert!(matches!(decide("b", &addresses(), &views), Decision::Wait(_)));
        assert!(matches!(decide("a", &addresses(), &views[..2]), Decision::Wait(_)), "c does not answer");
    }

    #[test]
    fn a_lone_replica_founds() {
        assert_eq!(decide("a", &["a".to_owned()], &[empty("a", 1)]), Decision::Found);
    }

    #[test]
    fn a_led_cluster_is_joined() {
        let views = [member("a", 1, "x", &[1, 2, 3], 2), member("b", 2, "x", &[1, 2, 3], 2), empty("c", 4)];
        assert_eq!(decide("c", &addresses(), &views), Decision::Join(vec!["x".into()]));
        assert_eq!(leader_of(&views, "x").unwrap().node_id, 2);
        // Even if no other replica answers.
        assert_eq!(decide("c", &addresses(), &views[1..]), Decision::Join(vec!["x".into()]));
    }

    #[test]
    fn a_cluster_with_a_quorum_is_waited_for() {
        let views = [member("a", 1, "x", &[1, 2, 3], 3), member("b", 2, "x", &[1, 2, 3], 3), empty("c", 4)];
        assert!(matches!(decide("c", &addresses(), &views), Decision::Wait(_)));
        // The founder restarts alone: its own vote is its quorum.
        let views = [member("a", 1, "x", &[1], 0), empty("b", 2), empty("c", 3)];
        assert!(matches!(decide("b", &addresses(), &views), Decision::Wait(_)));
    }

    #[test]
    fn a_cluster_that_lost_its_quorum_is_replaced() {
        let views = [member("a", 1, "x", &[1, 2, 3], 0), empty("b", 4), empty("c", 5)];
        assert_eq!(decide("b", &addresses(), &views), Decision::Found);
        assert!(matches!(decide("c", &addresses(), &views), Decision::Wait(_)));
    }

    #[test]
    fn the_newest_membership_counts() {
        // b knows only the founder's membership; a knows that c, now wiped, was a voter beside it.
        let views = [member("a", 1, "x", &[1, 3], 0), member("b", 2, "x", &[1], 0), empty("c", 9)];
        assert_eq!(decide("c", &addresses(), &views), Decision::Found);
    }

    #[test]
    fn a_replica_about_to_join_is_waited_for() {
        let mut joining = member("b", 2, "x", &[], 0);
        joining.voters.clear();
        let views = [empty("a", 1), joining, empty("c", 3)];
        assert!(matches!(decide("a", &addresses(), &views), Decision::Wait(_)));
    }
}
