//! Rows of a table of ours, written as INSERT and UPDATE would, but without the executor, whose start and end cost several
//! times what a row does. Constraints are checked, every index is kept, generated columns are computed and a user's triggers
//! for rows are run by the functions that logical replication writes with. What only statements have is not: defaults,
//! rules, triggers for statements or for named columns, transition tables.
//!
//! Of a table that Citus distributes, a shard is opened.

use std::ffi::CStr;

use pgrx::pg_sys;

use super::{
    probe::{self, Key, Probe},
    row::{Row, Value},
};

unsafe extern "C-unwind" {
    fn ExecComputeStoredGenerated(
        target: *mut pg_sys::ResultRelInfo,
        state: *mut pg_sys::EState,
        row: *mut pg_sys::TupleTableSlot,
        command: pg_sys::CmdType::Type,
    );
}

/// A table of schema `mantle`, open for writing.
pub struct Writer {
    relation: pg_sys::Relation,
    state: *mut pg_sys::EState,
    target: *mut pg_sys::ResultRelInfo,
    /// The row being written.
    new: *mut pg_sys::TupleTableSlot,
    /// Where the row is that it replaces.
    old: *mut pg_sys::TupleTableSlot,
}

/// A copy of a row, and where it was read.
pub struct TupleCopy(pg_sys::HeapTuple);

impl TupleCopy {
    /// Of a row just read. Lives as long as the memory of the function that is running.
    pub fn of(row: &Row) -> Self {
        // SAFETY: the row is alive.
        Self(unsafe { pg_sys::heap_copytuple(row.tuple()) })
    }
}

impl Writer {
    /// Opens it. Within `Spi::connect` only: what it allocates is of that call.
    pub fn open(name: &CStr) -> Self {
        let relation = probe::open(name, pg_sys::RowExclusiveLock);
        // SAFETY: as PostgreSQL's logical replication opens what it writes: no range table, since nothing is checked against
        // one. Closed by `drop`, or by the end of a transaction that fails.
        unsafe {
            let state = pg_sys::CreateExecutorState();
            let mut context = pgrx::memcxt::PgMemoryContexts::For((*state).es_query_cxt);
            let target = context.palloc0_struct::<pg_sys::ResultRelInfo>();
            (*target).type_ = pg_sys::NodeTag::T_ResultRelInfo;
            pg_sys::InitResultRelInfo(target, relation, 0, std::ptr::null_mut(), 0);
            pg_sys::ExecOpenIndices(target, true);
            // Where triggers look for it.
            (*state).es_opened_result_relations = pg_sys::lappend((*state).es_opened_result_relations, target.cast());
            let slot = || pg_sys::MakeSingleTupleTableSlot((*relation).rd_att, &raw const pg_sys::TTSOpsVirtual);
            Self { relation, state, target, new: slot(), old: slot() }
        }
    }

    /// As [`probe::find`].
    pub fn find<T>(&self, key: &[Key], read: impl FnOnce(&Row) -> T) -> Option<T> {
        // SAFETY: open as long as this lives.
        unsafe { probe::find(self.relation, key, read) }
    }

    /// For many probes of the table, which must be dropped before this.
    pub fn probe(&self, columns: usize) -> Probe {
        // SAFETY: open as long as this lives.
        unsafe { Probe::open(self.relation, columns) }
    }

    /// The numbers of columns, from 1. Quick if they are named in the table's order.
    pub fn columns<const N: usize>(&self, names: [&CStr; N]) -> [i32; N] {
        // SAFETY: the description is open as long as this lives, and has as many attributes as it says.
        let attributes = unsafe { (*(*self.relation).rd_att).attrs.as_slice(self.width()) };
        let is = |at: &usize, name: &CStr| {
            let attribute = &attributes[*at];
            // SAFETY: a name ends with NUL.
            !attribute.attisdropped && unsafe { CStr::from_ptr(attribute.attname.data.as_ptr()) } == name
        };
        let mut next = 0;
        names.map(|name| {
            let found = (next..attributes.len()).chain(0..next).find(|at| is(at, name));
            next = found.unwrap_or_else(|| pgrx::error!("a table of mantle's has no column {name:?}")) + 1;
            next as i32
        })
    }

    /// Inserts a row; columns that are not given are NULL. A key that is there already is an error, as of INSERT.
    pub fn insert<const N: usize>(&mut self, columns: &[i32; N], values: [Value; N]) {
        // SAFETY: the slot is as wide as the table; values are of the columns' types, as callers say.
        unsafe {
            self.set_all(columns, values);
            self.begin_row();
            pg_sys::ExecSimpleRelationInsert(self.target, self.state, self.new);
        }
        self.end_row();
    }

    /// As INSERT … ON CONFLICT DO NOTHING: was there no row with any of its unique keys? Waits for the end of a transaction
    /// that is writing one.
    pub fn insert_if_free<const N: usize>(&mut self, columns: &[i32; N], values: [Value; N]) -> bool {
        // SAFETY: as for `insert`; as the executor does it.
        let inserted = unsafe {
            self.set_all(columns, values);
            self.begin_row();
            let triggers = (*self.target).ri_TrigDesc;
            let is_wanted = triggers.is_null()
                || !(*triggers).trig_insert_before_row
                || pg_sys::ExecBRInsertTriggers(self.state, self.target, self.new);
            if is_wanted {
                self.constrain();
            }
            is_wanted && self.insert_unless_taken()
        };
        self.end_row();
        inserted
    }

    /// # Safety
    /// The slot holds a row.
    unsafe fn constrain(&mut self) {
        // SAFETY: table, slot and state are this writer's; what they raise is raised inside of pgrx's guard.
        unsafe {
            let constraints = (*(*self.relation).rd_att).constr;
            if constraints.is_null() {
                return;
            }
            if (*constraints).has_generated_stored {
                pg_sys::ffi::pg_guard_ffi_boundary(|| {
                    ExecComputeStoredGenerated(self.target, self.state, self.new, pg_sys::CmdType::CMD_INSERT);
                });
            }
            pg_sys::ExecConstraints(self.target, self.new, self.state);
        }
    }

    /// # Safety
    /// The slot holds a row, and [`begin_row`](Self::begin_row) was called.
    unsafe fn insert_unless_taken(&mut self) -> bool {
        let everywhere = std::ptr::null_mut();
        // SAFETY: table, slot and state are this writer's. What the table's access method does may raise, so it is called
        // inside of pgrx's guard.
        unsafe {
            let xid = pg_sys::GetCurrentTransactionId();
            let method = &*(*self.relation).rd_tableam;
            let (Some(insert), Some(complete)) = (method.tuple_insert_speculative, method.tuple_complete_speculative)
            else {
                pgrx::error!("the access method of a table of mantle's has no speculative insertion");
            };
            loop {
                // Another transaction that comes to the same key now waits for this insertion, not for the transaction.
                let token = pg_sys::SpeculativeInsertionLockAcquire(xid);
                let command = (*self.state).es_output_cid;
                pg_sys::ffi::pg_guard_ffi_boundary(|| {
                    insert(self.relation, self.new, command, 0, std::ptr::null_mut(), token);
                });
                let mut conflict = false;
                let rechecked = pg_sys::ExecInsertIndexTuples(
                    self.target,
                    self.new,
                    self.state,
                    false,
                    true,
                    &mut conflict,
                    everywhere,
                    #[cfg(any(feature = "pg16", feature = "pg17"))]
                    false,
                );
                pg_sys::ffi::pg_guard_ffi_boundary(|| complete(self.relation, self.new, token, !conflict));
                pg_sys::SpeculativeInsertionLockRelease(xid);
                if !conflict {
                    pg_sys::ExecARInsertTriggers(self.state, self.target, self.new, rechecked, std::ptr::null_mut());
                    return true;
                }
                // Not before the first try, as INSERT does it: that would cost each new row a probe, to spare those few that
                // are taken a dead one. Waits for who has the key; if that one failed it is free after all.
                let mut taken = pg_sys::ItemPointerData::default();
                if !pg_sys::ExecCheckIndexConstraints(self.target, self.new, self.state, &mut taken, everywhere) {
                    return false;
                }
            }
        }
    }

    /// Locks a row for [`update`](Self::update), unless it is held, or is not what it was when it was read.
    pub fn lock(&mut self, row: &TupleCopy) -> bool {
        // SAFETY: the table is open; the tuple names a row that was there when it was read, which is all that is asked of it.
        unsafe {
            let mut tuple = pg_sys::HeapTupleData {
                t_len: 0,
                t_self: (*row.0).t_self,
                t_tableOid: (*self.relation).rd_id,
                t_data: std::ptr::null_mut(),
            };
            let (mut buffer, mut seen) = (0, std::mem::zeroed::<pg_sys::TM_FailureData>());
            let result = pg_sys::heap_lock_tuple(
                self.relation,
                &mut tuple,
                pg_sys::GetCurrentCommandId(true),
                pg_sys::LockTupleMode::LockTupleNoKeyExclusive,
                pg_sys::LockWaitPolicy::LockWaitSkip,
                false,
                &mut buffer,
                &mut seen,
            );
            pg_sys::ReleaseBuffer(buffer);
            result == pg_sys::TM_Result::TM_Ok
        }
    }

    /// Replaces columns of a row that [`lock`](Self::lock) has locked.
    pub fn update<const N: usize>(&mut self, row: &TupleCopy, columns: &[i32; N], values: [Value; N]) {
        // SAFETY: as for `insert`. A recheck is not made: the row is locked.
        unsafe {
            pg_sys::ExecClearTuple(self.new);
            pg_sys::heap_deform_tuple(row.0, (*self.relation).rd_att, (*self.new).tts_values, (*self.new).tts_isnull);
            self.set(columns, values);
            (*self.old).tts_tid = (*row.0).t_self;
            let mut recheck = std::mem::zeroed::<pg_sys::EPQState>();
            self.begin_row();
            pg_sys::ExecSimpleRelationUpdate(self.target, self.state, &mut recheck, self.old, self.new);
        }
        self.end_row();
    }

    /// # Safety
    /// Values are of the columns' types.
    unsafe fn set_all<const N: usize>(&mut self, columns: &[i32; N], values: [Value; N]) {
        // SAFETY: the slot has as many places as the table columns.
        unsafe {
            pg_sys::ExecClearTuple(self.new);
            std::slice::from_raw_parts_mut((*self.new).tts_isnull, self.width()).fill(true);
            self.set(columns, values);
        }
    }

    /// # Safety
    /// Values are of the columns' types; the slot's other columns are set.
    unsafe fn set<const N: usize>(&mut self, columns: &[i32; N], values: [Value; N]) {
        // SAFETY: numbers are of columns of this table, as many as the slot has places.
        unsafe {
            for (column, value) in columns.iter().zip(values) {
                let at = *column as usize - 1;
                *(*self.new).tts_values.add(at) = value.unwrap_or(pg_sys::Datum::from(0_usize));
                *(*self.new).tts_isnull.add(at) = value.is_none();
            }
            pg_sys::ExecStoreVirtualTuple(self.new);
        }
    }

    fn width(&self) -> usize {
        // SAFETY: the description is open as long as this lives.
        unsafe { (*(*self.relation).rd_att).natts as usize }
    }

    /// As a statement of its own.
    fn begin_row(&mut self) {
        // SAFETY: the state is this one's; `end_row` ends what begins here, or the end of a transaction that fails.
        unsafe {
            (*self.state).es_output_cid = pg_sys::GetCurrentCommandId(true);
            pg_sys::AfterTriggerBeginQuery();
        }
    }

    /// Triggers that a user has added are run, what was written is seen by what comes next, and what it took to evaluate
    /// indexes' predicates is freed.
    fn end_row(&mut self) {
        // SAFETY: the context, if there is one, is the state's, and nothing of it is used after a row.
        unsafe {
            pg_sys::CommandCounterIncrement();
            pg_sys::AfterTriggerEndQuery(self.state);
            let context = (*self.state).es_per_tuple_exprcontext;
            if !context.is_null() {
                pg_sys::MemoryContextReset((*context).ecxt_per_tuple_memory);
            }
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // An error that unwinds ends the transaction, which closes all.
        if !std::thread::panicking() {
            // SAFETY: opened by `open`, closed once. The locks stay until the transaction ends, as a statement's do.
            unsafe {
                pg_sys::ExecDropSingleTupleTableSlot(self.new);
                pg_sys::ExecDropSingleTupleTableSlot(self.old);
                pg_sys::ExecCloseIndices(self.target);
                // What triggers' rows were in.
                pg_sys::ExecResetTupleTable((*self.state).es_tupleTable, false);
                pg_sys::FreeExecutorState(self.state);
                pg_sys::table_close(self.relation, pg_sys::NoLock as pg_sys::LOCKMODE);
            }
        }
    }
}
