//! Advances everything together, a millisecond at a time: packets arrive, each host runs, then the clients, then the invariants
//! check each replica's state.

use std::path::Path;

use mantle_indexnode::raft::types::LogId;
use mantle_types::Lsn;
use rand::{Rng, SeedableRng, rngs::StdRng};
use tokio::sync::watch;

use crate::{
    client::{self, Client},
    disk::Part,
    history::History,
    host::{ClientHost, Host},
    invariants::{
        CheckResult, Sample, acyclic, applied_is_prefix::AppliedIsPrefix, applied_survives, locks_end, monotonic_reads,
        no_lost_entry, read_your_writes,
    },
    network::{HostId, Network, Packet},
    postgres::SlotAfter,
    trace::Trace,
    upstream::Server,
};

/// A replica that ended by itself restarts after this time, as with a service manager.
const RESTART_MS: u64 = 200;

pub struct World {
    /// Milliseconds since the beginning.
    pub now_ms: u64,
    /// Milliseconds of one step. Messages that a host sends during a step leave at its end.
    pub step_ms: u64,
    /// The hosts of the replicas.
    pub hosts: Vec<Host>,
    pub network: Network,
    pub server: Server,
    pub history: History,
    pub trace: Trace,
    seed: u64,
    clients: ClientHost,
    stop_clients: watch::Sender<bool>,
    restarts: Vec<(u64, HostId)>,
    applied: Vec<Option<LogId>>,
    prefix: AppliedIsPrefix,
    checked_transactions: usize,
    /// A folder went back, so replicas may differ until they find out.
    has_gone_back: bool,
    /// The first invariant that was broken.
    pub violation: Option<String>,
}

impl World {
    /// A world of `voters` and `learners`, with their disks below a directory. `is_protected`: PostgreSQL's commits wait for a
    /// standby.
    pub fn new(
        seed: u64,
        (voters, learners): (usize, usize),
        is_protected: bool,
        directory: &Path,
        prints: bool,
    ) -> Self {
        let hosts = voters + learners;
        let trace = Trace::new(prints);
        let addresses: Vec<String> = (1..=hosts).map(|n| format!("10.0.0.{n}:7400")).collect();
        let network = Network::new(seed, addresses.clone(), trace.clone());
        let server = Server::new(seed, is_protected);
        let mut rng = StdRng::seed_from_u64(seed);
        let host = |id| {
            let mut host = Host::new(id, (&addresses, voters), directory, seed, network.clone(), server.clone());
            host.drift_ppm = rng.random_range(-100..=100);
            host
        };
        Self {
            now_ms: 0,
            step_ms: 1,
            hosts: (0..hosts).map(host).collect(),
            network,
            server,
            history: History::default(),
            trace,
            seed,
            clients: ClientHost::new(),
            stop_clients: watch::Sender::new(false),
            restarts: Vec::new(),
            applied: vec![None; hosts],
            prefix: AppliedIsPrefix::default(),
            checked_transactions: 0,
            has_gone_back: false,
            violation: None,
        }
    }

    /// Records an event with its time.
    pub fn note(&self, event: std::fmt::Arguments<'_>) {
        self.trace.note(format_args!("{} {event}", self.now_ms));
    }

    /// The world as a client sees it.
    pub fn client_world(&self) -> client::ClientWorld {
        client::ClientWorld {
            network: self.network.clone(),
            server: self.server.clone(),
            history: self.history.clone(),
            trace: self.trace.clone(),
            replicas: self.hosts.len(),
        }
    }

    /// Starts clients that act until they are told to stop.
    pub fn start_clients(&mut self, number: usize, rng: &mut StdRng) {
        for id in 0..number {
            let stops = self.stop_clients.subscribe();
            let client = Client::new(id, StdRng::from_rng(rng), self.client_world(), stops);
            self.clients.spawn(client.run());
        }
    }

    /// Starts one client.
    pub fn start_client<F>(&self, id: usize, acts: impl FnOnce(Client) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let rng = StdRng::seed_from_u64(self.seed ^ (id as u64 + 1));
        self.stop_clients.send_replace(false);
        self.clients.spawn(acts(Client::new(id, rng, self.client_world(), self.stop_clients.subscribe())));
    }

    /// Cuts or restores every link between two groups of hosts. Clients reach both.
    pub fn set_split(&self, one: &[HostId], other: &[HostId], is_split: bool) {
        for (a, b) in one.iter().flat_map(|a| other.iter().map(move |b| (*a, *b))) {
            self.network.set_cut(a, b, is_split);
            self.network.set_cut(b, a, is_split);
        }
    }

    /// Promotes PostgreSQL's standby.
    pub fn fail_over(&mut self, slot: SlotAfter) {
        let switch = self.server.fail_over(slot);
        self.note(format_args!("PostgreSQL left its timeline at {switch}, its slot is {slot:?}"));
        self.history.lose(switch);
    }

    /// Tells the clients to stop after their current action.
    pub fn stop_clients(&self) {
        self.stop_clients.send_replace(true);
    }

    /// Starts a host's process, if none runs.
    pub fn start(&mut self, host: HostId) {
        if self.hosts[host].is_up() {
            return;
        }
        let started = self.hosts[host].start();
        self.note(format_args!("host {host} starts: {:?}", started.as_ref().err()));
        if started.is_err() {
            self.restarts.push((self.now_ms + RESTART_MS, host));
        }
    }

    /// Ends a host's process.
    pub fn kill(&mut self, host: HostId, power_is_lost: bool) {
        self.note(format_args!("host {host} ends, power lost: {power_is_lost}"));
        self.restarts.retain(|(_, other)| *other != host);
        self.hosts[host].kill(power_is_lost).expect("the files are in memory");
        self.network.end_calls_to(host, !power_is_lost);
        self.applied[host] = None;
    }

    /// Keeps a copy of a host's disk.
    pub fn keep_copy(&mut self, host: HostId) {
        self.hosts[host].keep_copy().expect("the files are in memory");
    }

    /// Puts the copy of a host's disk back, if there is one. The host must have no process.
    pub fn put_back(&mut self, host: HostId, part: Part) {
        if self.hosts[host].put_back(part).expect("the files are in memory") {
            self.note(format_args!("{part:?} of host {host}'s folder goes back"));
            self.has_gone_back = true;
        }
    }

    /// Erases the disk of a host without a process.
    pub fn wipe(&mut self, host: HostId) {
        if !self.hosts[host].is_up() {
            self.hosts[host].wipe().expect("the files are in memory");
        }
    }

    pub fn tick(&mut self) {
        self.now_ms += self.step_ms;
        while let Some(packet) = self.network.next_due(self.now_ms) {
            self.deliver(packet);
        }
        for host in 0..self.hosts.len() {
            self.hosts[host].tick(self.now_ms, self.step_ms);
            self.look_at(host);
        }
        (0..self.step_ms).for_each(|_| self.server.tick());
        self.clients.tick(self.now_ms);
        let checked = self.check_source();
        self.expect(checked);
        let due: Vec<HostId> =
            self.restarts.extract_if(.., |(at, _)| *at <= self.now_ms).map(|(_, host)| host).collect();
        due.into_iter().for_each(|host| self.start(host));
    }

    fn deliver(&mut self, packet: Packet) {
        match packet {
            Packet::Request { to, call, request, .. } => {
                self.note(format_args!("request {call} reaches {to}"));
                if !self.hosts[to].serve(call, request) {
                    self.network.respond(call, None);
                }
            }
            Packet::Response { call, response } => {
                self.note(format_args!("answer of {call}"));
                self.network.answer(call, response);
            }
        }
    }

    /// Records a replica's new state, and checks it.
    fn look_at(&mut self, host: HostId) {
        if let Some(end) = self.hosts[host].end() {
            self.note(format_args!("host {host} has ended: {end}"));
            self.kill(host, false);
            // An administrator starts the newer program that its log asks for (docs/formats.md).
            self.hosts[host].is_old &= !end.contains("newer rule");
            self.restarts.push((self.now_ms + RESTART_MS, host));
            return;
        }
        let Some(node) = self.hosts[host].node() else { return };
        let applied = node.state.read().applied;
        if applied == self.applied[host] {
            return;
        }
        self.applied[host] = applied;
        let Some(sample) = Sample::of(host, &node) else { return };
        let Sample { applied, source, digest, .. } = &sample;
        let (timeline, lsn) = source.map_or((0, Lsn::INVALID), |source| (source.lineage.timeline, source.applied));
        self.note(format_args!("host {host} applied {applied} {timeline}/{lsn} {digest:x}"));
        let has_gone_back = self.has_gone_back;
        let checked = self.server.with(|postgres| {
            self.prefix.check(&sample, postgres, has_gone_back)?;
            applied_survives::check(&sample, postgres)?;
            // A leader in doubt may lack a prepare; its epoch is raised before it answers.
            if !has_gone_back {
                locks_end::check(&sample, postgres)?;
            }
            let is_filled = sample.source.is_some();
            if is_filled { acyclic::check(&format!("host {host}"), sample.records.iter()) } else { Ok(()) }
        });
        self.expect(checked);
    }

    fn check_source(&mut self) -> CheckResult {
        self.server.with(|postgres| {
            let timelines = &postgres.timelines;
            self.checked_transactions = self.checked_transactions.min(timelines.wal().len());
            while self.checked_transactions < timelines.wal().len() {
                self.checked_transactions += 1;
                let tree = timelines.tree_after(timelines.now, self.checked_transactions);
                acyclic::check("PostgreSQL", tree.records())?;
            }
            Ok(())
        })
    }

    fn expect(&mut self, checked: CheckResult) {
        if let (Err(violation), None) = (checked, &self.violation) {
            self.note(format_args!("violation: {violation}"));
            self.violation = Some(violation);
        }
    }

    /// Runs until a condition holds. `false`: it did not within the time, or an invariant was broken first.
    pub fn run_until(&mut self, limit_ms: u64, mut holds: impl FnMut(&mut Self) -> bool) -> bool {
        let end = self.now_ms + limit_ms;
        while self.now_ms < end && self.violation.is_none() {
            if holds(self) {
                return true;
            }
            self.tick();
        }
        holds(self) && self.violation.is_none()
    }

    /// The states of the hosts that run and have applied something.
    pub fn samples(&self) -> Vec<Sample> {
        let nodes = self.hosts.iter().enumerate().filter_map(|(id, host)| Some((id, host.node()?)));
        nodes.filter_map(|(id, node)| Sample::of(id, &node)).collect()
    }

    /// The leader of the newest term.
    pub fn leader(&self) -> Option<HostId> {
        let leaders =
            self.hosts.iter().enumerate().filter_map(|(id, host)| Some((host.node()?.leadership()?.term, id)));
        leaders.max().map(|(_, id)| id)
    }

    /// Tells whether every host runs a serving voter or learner, and no membership change is in progress.
    pub fn is_complete(&self) -> bool {
        let voters = self.hosts.iter().filter(|host| !host.is_learner()).count();
        self.hosts.iter().all(|host| {
            host.node().is_some_and(|node| {
                let membership = node.membership();
                node.state.read().index.is_serving()
                    && membership.get_joint_config().len() == 1
                    && membership.voter_ids().count() == voters
                    && membership.voter_ids().any(|id| id == node.node_id) != host.is_learner()
                    && membership.get_node(&node.node_id).is_some()
            })
        })
    }

    /// Tells whether all replicas are equal, everything is applied, and no lock is held.
    pub fn is_quiet(&self) -> bool {
        let samples = self.samples();
        let (last, timeline) = self.server.with(|postgres| {
            let last = postgres.timelines.wal().last().map(|transaction| transaction.commit_lsn);
            (last, postgres.timelines.now)
        });
        let has_all = |s: &Sample| {
            s.source.is_some_and(|source| source.lineage.timeline == timeline)
                && last.is_none_or(|l| s.applied_lsn() >= l)
        };
        self.is_complete() && samples.iter().all(|s| s.is_equal(&samples[0]) && s.locks.is_empty() && has_all(s))
    }

    /// Checks the invariants about answers and about the end.
    pub fn check_end(&mut self) {
        let lookups = self.history.lookups();
        let checked = self.server.with(|postgres| {
            for sample in self.samples() {
                no_lost_entry::at_end(&sample, postgres)?;
                locks_end::at_end(&sample)?;
            }
            read_your_writes::at_end(&lookups, postgres)?;
            monotonic_reads::at_end(&lookups, postgres)
        });
        self.expect(checked);
    }

    /// Checks the invariants about answers, also in the middle of a history.
    pub fn check_answers(&mut self) {
        let lookups = self.history.lookups();
        let checked = self.server.with(|postgres| {
            read_your_writes::at_end(&lookups, postgres)?;
            monotonic_reads::at_end(&lookups, postgres)
        });
        self.expect(checked);
    }

    /// Number of entries whose states were compared.
    pub fn states_seen(&self) -> usize {
        self.prefix.len()
    }
}
