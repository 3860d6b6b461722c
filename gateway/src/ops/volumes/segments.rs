//! Leases of segments. A lease has an epoch, and a PostgreSQL node accepts a row's locator only if it has admitted the epoch in the
//! locator (P59). So once all nodes have admitted a new epoch, nothing is committed under the earlier one any more. The rows then show
//! everything that was written before: what no row names is free (P61), and puts in doubt are settled.

use std::{collections::BTreeMap, time::Instant};

use futures::future::try_join_all;
use mantle_types::Result;
use mantle_volumes::{Lease, SegmentId};

use super::{
    Keeper, broken,
    named::{Named, has_unnamed, read},
    repeatable,
};
use crate::store::{NamedIn, SegmentLease};

/// Most locators that are read at a time.
const PAGE_LOCATORS: usize = 5_000;
/// Counter of segments that were not taken into use.
const SEGMENTS_REFUSED: &str = "mantle_gateway_segments_refused_total";
/// Most segments that a node admits in a call.
const ADMITTED_MAX: usize = 1_000;
/// Most freed locators that a node is asked about in a call.
const FREED_MAX: usize = 1_000;

impl Keeper<'_> {
    /// Takes over all leased segments of the volume, whoever has them. Puts in progress continue under the new epochs, once
    /// [`Self::take_pending_into_use`] has come to their segments.
    pub(super) async fn take_all_over(&mut self) -> Result<()> {
        for lease in self.leases()? {
            self.pause(lease.segment)?;
        }
        self.nodes = self.store.volume_nodes().await?;
        self.horizons.clear();
        self.unsure.clear();
        self.away.clear();
        let taken = self.store.take_over_segments(&self.mount, None).await?;
        self.pending = taken.into_iter().map(|taken| taken.lease).collect();
        for lease in self.leases()? {
            if self.pending.iter().all(|taken| taken.segment != lease.segment) {
                self.release(lease.segment)?;
            }
        }
        Ok(())
    }

    fn leases(&self) -> Result<Vec<Lease>> {
        self.volumes.store().leases(self.mount.volume).map_err(|cause| broken(&cause))
    }

    fn pause(&self, segment: SegmentId) -> Result<()> {
        self.volumes.store().pause(segment).map_err(|cause| broken(&cause))
    }

    fn release(&self, segment: SegmentId) -> Result<()> {
        self.volumes.store().release(segment).map_err(|cause| broken(&cause))?;
        self.volumes.has_changed();
        Ok(())
    }

    /// Whether there is a leased segment that is not pending, full or not.
    pub(super) fn has_open_segments(&self) -> Result<bool> {
        let is_pending = |lease: &Lease| self.pending.iter().any(|pending| pending.segment == lease.segment);
        Ok(!self.leases()?.iter().all(is_pending))
    }

    /// Leases segments under a new epoch, so that the rows show what is free there.
    async fn lease_anew(&mut self, segments: &[SegmentId]) -> Result<()> {
        if segments.is_empty() {
            return Ok(());
        }
        for segment in segments {
            self.pause(*segment)?;
        }
        match self.store.take_over_segments(&self.mount, Some(segments)).await {
            Ok(taken) => self.pending.extend(taken.into_iter().map(|taken| taken.lease)),
            Err(error) => {
                // Which epochs they have now is not known.
                self.lineage = None;
                return Err(error);
            }
        }
        self.take_pending_into_use().await
    }

    /// Lets every node admit the leases that were taken over, and reads what rows name there.
    pub(super) async fn take_pending_into_use(&mut self) -> Result<()> {
        self.volumes.set_reading(!self.pending.is_empty());
        if self.pending.is_empty() {
            return Ok(());
        }
        self.note_histories().await?;
        try_join_all(self.nodes.iter().map(|at| self.admit(*at, &self.pending))).await?;
        while let Some(lease) = self.pending.last().copied() {
            self.read_and_lease(lease).await?;
            self.pending.pop();
            self.volumes.has_changed();
        }
        self.volumes.set_reading(false);
        Ok(())
    }

    /// An error if a node is away. Then none admits the new epochs: puts under way on the others go on under those before.
    async fn note_histories(&mut self) -> Result<()> {
        let mut away = None;
        for at in self.nodes.clone() {
            if let Err(error) = self.note_history(at).await {
                away = Some(error);
            }
        }
        away.map_or(Ok(()), Err)
    }

    /// Lets a node take locators of these leases. Its history has to be noted before.
    async fn admit(&self, at: i64, leases: &[Lease]) -> Result<()> {
        for some in leases.chunks(ADMITTED_MAX) {
            self.store.admit_segments(at, &self.mount, some).await.map_err(repeatable)?;
        }
        Ok(())
    }

    async fn read_and_lease(&self, lease: Lease) -> Result<()> {
        let named = self.named_in(lease).await?;
        let Some(Named { used, obsolete }) = read(&named, lease.segment, self.mount.geometry) else {
            tracing::error!(segment = %lease.segment, "rows name bytes that cannot be; the segment is left out");
            return self.leave_out(lease.segment);
        };
        if !obsolete.is_empty() {
            for at in &self.nodes {
                self.store.forget_freed(*at, &self.mount, &obsolete).await.map_err(repeatable)?;
            }
        }
        match self.volumes.store().lease(lease.segment, lease.epoch, used) {
            Err(cause @ mantle_volumes::Error::Overlap { .. }) => {
                tracing::error!(%cause, "rows name the same blocks for different bytes; the segment is left out");
                self.leave_out(lease.segment)
            }
            leased => leased.map_err(|cause| broken(&cause)),
        }
    }

    /// Does not take a segment into use: nothing is allocated there, and its bytes stay readable.
    fn leave_out(&self, segment: SegmentId) -> Result<()> {
        metrics::counter!(SEGMENTS_REFUSED).increment(1);
        self.release(segment)
    }

    /// Takes new leases into use. PostgreSQL says of each whether rows may name bytes there. If none may, not every node has to admit
    /// the lease: a node that does not answer refuses puts there until it has admitted it.
    pub(super) async fn take_new_into_use(&mut self, leases: &[SegmentLease]) -> Result<()> {
        let (used, unused): (Vec<SegmentLease>, Vec<SegmentLease>) =
            leases.iter().copied().partition(|lease| lease.was_used);
        self.pending.extend(used.into_iter().map(|used| used.lease));
        let unused: Vec<Lease> = unused.into_iter().map(|unused| unused.lease).collect();
        self.admit_unused(&unused).await?;
        for lease in unused {
            if let Err(cause) = self.fill_and_lease(lease).await {
                // The segments are leased and not in use. Taking all over repairs that.
                self.lineage = None;
                return Err(broken(&cause));
            }
            self.volumes.has_changed();
        }
        self.take_pending_into_use().await
    }

    async fn fill_and_lease(&self, Lease { segment, epoch }: Lease) -> mantle_volumes::Result<()> {
        self.volumes.store().fill(segment).await?;
        self.volumes.store().lease(segment, epoch, [])
    }

    async fn admit_unused(&mut self, leases: &[Lease]) -> Result<()> {
        if leases.is_empty() {
            return Ok(());
        }
        let mut failed = None;
        for at in self.nodes.clone() {
            let admitted = match self.note_history(at).await {
                Ok(()) => self.admit(at, leases).await,
                Err(error) => Err(error),
            };
            if let Err(error) = admitted {
                tracing::debug!(at, %error, "a node has not admitted segments");
                self.away.entry(at).or_default().extend(leases);
                failed = Some(error);
            }
        }
        match failed {
            Some(error) if self.away.len() == self.nodes.len() => {
                // No node has admitted them, so they are taken over again when a node answers.
                self.lineage = None;
                Err(error)
            }
            _ => Ok(()),
        }
    }

    /// Lets nodes that did not answer before admit their leases.
    pub(super) async fn admit_at_returned(&mut self) -> Result<()> {
        for at in self.away.keys().copied().collect::<Vec<_>>() {
            self.note_history(at).await?;
            let Some(leases) = self.away.get(&at) else { continue };
            self.admit(at, leases).await?;
            self.away.remove(&at);
        }
        Ok(())
    }

    /// What rows name in a segment.
    async fn named_in(&self, lease: Lease) -> Result<Vec<NamedIn>> {
        let mut named: Vec<NamedIn> = Vec::new();
        loop {
            let after = named.last().map(|last| last.locator.clone()).unwrap_or_default();
            let page = self.store.segment_locators(lease, &after, PAGE_LOCATORS).await?;
            let is_last = page.len() < PAGE_LOCATORS;
            named.extend(page);
            if is_last {
                return Ok(named);
            }
        }
    }

    /// Whether every PostgreSQL node has admitted every lease.
    fn is_complete(&self) -> bool {
        self.pending.is_empty() && self.away.is_empty()
    }

    /// Frees the blocks of puts whose outcome nobody learned, unless rows name them.
    pub(super) async fn settle_doubts(&mut self) -> Result<()> {
        if !self.is_complete() {
            return Ok(());
        }
        let doubtful = self.volumes.store().doubtful_segments(self.mount.volume).map_err(|cause| broken(&cause))?;
        if doubtful.is_empty() {
            self.doubts_since = None;
            return Ok(());
        }
        let since = *self.doubts_since.get_or_insert_with(Instant::now);
        if since.elapsed().as_millis() < self.volumes.settings().doubt_ms.into() {
            return Ok(());
        }
        self.lease_anew(&doubtful).await?;
        self.doubts_since = None;
        Ok(())
    }

    /// Frees bytes that several rows named, and none does any more. Finds blocks that no row names and for which there is no freed row:
    /// those rows were purged.
    pub(super) async fn sweep(&mut self) -> Result<()> {
        if self.swept.elapsed() < self.sweep_interval || !self.is_complete() {
            return Ok(());
        }
        self.swept = Instant::now();
        let mut with_unnamed = Vec::new();
        for lease in self.leases()? {
            // The usage is read before the rows, so puts that end meanwhile can only make the rows name more.
            let usage = self.volumes.store().usage(lease.segment).map_err(|cause| broken(&cause))?;
            let named = self.named_in(lease).await?;
            let Some(Named { used, obsolete }) = read(&named, lease.segment, self.mount.geometry) else { continue };
            if has_unnamed(usage, &used) {
                with_unnamed.push(lease.segment);
            }
            let freed = named.into_iter().filter(|named| named.is_freed).map(|named| named.locator);
            let freed: Vec<String> = freed.filter(|locator| !obsolete.contains(locator)).collect();
            for some in freed.chunks(FREED_MAX) {
                self.settle_shared(some).await?;
            }
        }
        self.lease_anew(&with_unnamed).await
    }

    /// Frees those of these bytes that were shared. Each node that removed a row which named them knows of them, and only one may
    /// free them: so the others forget them first.
    async fn settle_shared(&self, unnamed: &[String]) -> Result<()> {
        let (mut known, mut forgotten): (BTreeMap<String, i64>, BTreeMap<i64, Vec<String>>) = Default::default();
        for at in &self.nodes {
            for locator in self.store.shared_freed(*at, unnamed).await.map_err(repeatable)? {
                if let Some(earlier) = known.insert(locator.clone(), *at) {
                    forgotten.entry(earlier).or_default().push(locator);
                }
            }
        }
        for (at, locators) in forgotten {
            self.store.forget_freed(at, &self.mount, &locators).await.map_err(repeatable)?;
        }
        let mut settled: BTreeMap<i64, Vec<String>> = BTreeMap::new();
        known.into_iter().for_each(|(locator, at)| settled.entry(at).or_default().push(locator));
        for (at, locators) in settled {
            self.store.settle_shared(at, &self.mount, &locators).await.map_err(repeatable)?;
        }
        Ok(())
    }
}
