//! Inserts and updates of single rows without the executor, whose start and end cost several times as much as a row.
//!
//! It uses the functions that logical replication writes with. They check constraints, maintain every PostgreSQL index,
//! compute generated columns and run row triggers. Not done, because only statements have them: defaults, rules,
//! statement triggers, triggers on named columns, transition tables.
//!
//! If Citus distributes the table, callers open one of its shards.

use std::{ffi::CStr, rc::Rc};

use pgrx::pg_sys;

use super::{
    descriptions::{self, Description},
    probe::{self, Key, Probe},
    row::{Row, Value},
    versions,
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
    description: Rc<Description>,
    /// The row to write.
    new: *mut pg_sys::TupleTableSlot,
    /// Holds the position of the row to replace.
    old: *mut pg_sys::TupleTableSlot,
}

/// A copy of a row with its position in the table. It lives as long as the memory context of the running function.
pub struct TupleCopy(pg_sys::HeapTuple);

impl TupleCopy {
    pub fn of(row: &Row) -> Self {
        // SAFETY: the row is alive.
        Self(unsafe { pg_sys::heap_copytuple(row.tuple()) })
    }
}

impl Writer {
    /// Opens a table. Only within `Spi::connect`, whose memory context it allocates in.
    pub fn open(name: &CStr) -> Self {
        let relation = probe::open(name, pg_sys::RowExclusiveLock);
        // SAFETY: opened like the target of PostgreSQL's logical replication. It has no range table because nothing
        // checks against one. `drop`, or the end of a failed transaction, closes it.
        unsafe {
            let state = pg_sys::CreateExecutorState();
            let mut context = pgrx::memcxt::PgMemoryContexts::For((*state).es_query_cxt);
            let target = context.palloc0_struct::<pg_sys::ResultRelInfo>();
            (*target).type_ = pg_sys::NodeTag::T_ResultRelInfo;
            pg_sys::InitResultRelInfo(target, relation, 0, std::ptr::null_mut(), 0);
            let description = descriptions::of(relation);
            description.attach(target, state);
            // Triggers look for the table here.
            (*state).es_opened_result_relations = pg_sys::lappend((*state).es_opened_result_relations, target.cast());
            let slot = || pg_sys::MakeSingleTupleTableSlot((*relation).rd_att, &raw const pg_sys::TTSOpsVirtual);
            Self { relation, state, target, description, new: slot(), old: slot() }
        }
    }

    /// See [`probe::find`].
    pub fn find<T>(&self, key: &[Key], read: impl FnOnce(&Row) -> T) -> Option<T> {
        // SAFETY: the table is open until `drop`.
        unsafe { probe::find(self.relation, key, read) }
    }

    /// See [`probe::find_all`].
    pub fn find_all<T>(&self, key: &[Key], read: impl FnMut(&Row) -> T) -> Vec<T> {
        // SAFETY: the table is open until `drop`.
        unsafe { probe::find_all(self.relation, key, read) }
    }

    /// Reads the first row of an index that has this column. See [`probe::find_by`].
    pub fn find_by<T>(&self, index: pg_sys::Oid, column: Key, read: impl FnOnce(&Row) -> T) -> Option<T> {
        // SAFETY: the table is open until `drop`.
        unsafe { probe::find_by(self.relation, index, &[column], read) }
    }

    /// See [`probe::find_counting`].
    pub fn find_counting<T>(&self, key: &[Key], read: impl FnOnce(&Row) -> T) -> Option<(T, usize)> {
        // SAFETY: the table is open until `drop`.
        unsafe { probe::find_counting(self.relation, key, read) }
    }

    /// A copied row of this table, for reading.
    pub fn row(&self, of: &TupleCopy) -> Row {
        // SAFETY: the copy lives as long as the running function, and the description until `drop`.
        unsafe { Row::new(of.0, (*self.relation).rd_att) }
    }

    /// Opens a probe of the table. Drop it before the writer.
    pub fn probe(&self, columns: usize) -> Probe {
        // SAFETY: the table is open until `drop`.
        unsafe { Probe::open(self.relation, columns) }
    }

    /// The numbers of columns, from 1. It is fastest if they are named in the table's order.
    pub fn columns<const N: usize>(&self, names: [&CStr; N]) -> [i32; N] {
        // SAFETY: the description lives until `drop`.
        let attributes = unsafe { versions::attributes((*self.relation).rd_att) };
        let is = |at: &usize, name: &CStr| {
            let attribute = &attributes[*at];
            // SAFETY: the name ends with NUL.
            !attribute.attisdropped && unsafe { CStr::from_ptr(attribute.attname.data.as_ptr()) } == name
        };
        let mut next = 0;
        names.map(|name| {
            let found = (next..attributes.len()).chain(0..next).find(|at| is(at, name));
            next = found.unwrap_or_else(|| pgrx::error!("a table of mantle has no column {name:?}")) + 1;
            next as i32
        })
    }

    /// Inserts a row; other columns become NULL. As with INSERT, a duplicate key is an error.
    pub fn insert(&mut self, values: impl Iterator<Item = (i32, Value)>) {
        // SAFETY: the slot is as wide as the table; callers pass values of the columns' types.
        unsafe {
            self.set_all(values);
            self.begin_row();
            self.open_indexes();
            pg_sys::ExecSimpleRelationInsert(self.target, self.state, self.new);
        }
        self.end_row();
    }

    /// Like INSERT … ON CONFLICT DO NOTHING: `false` if a row has one of its unique keys. Waits for a transaction that
    /// is writing such a row.
    pub fn insert_if_free(&mut self, values: impl Iterator<Item = (i32, Value)>) -> bool {
        // SAFETY: as for `insert`; the steps are the executor's.
        let inserted = unsafe {
            self.set_all(values);
            self.begin_row();
            let triggers = (*self.target).ri_TrigDesc;
            let is_wanted = triggers.is_null()
                || !(*triggers).trig_insert_before_row
                || pg_sys::ExecBRInsertTriggers(self.state, self.target, self.new);
            if is_wanted {
                self.constrain(pg_sys::CmdType::CMD_INSERT);
                self.open_indexes();
            }
            is_wanted && self.insert_unless_taken()
        };
        self.end_row();
        inserted
    }

    /// Opens the PostgreSQL indexes that have an entry for the row in the slot.
    ///
    /// # Safety
    /// The slot holds a row.
    unsafe fn open_indexes(&mut self) {
        // SAFETY: the indexes are attached to this target.
        unsafe {
            let constraints = (*(*self.relation).rd_att).constr;
            let is_generated = !constraints.is_null() && (*constraints).has_generated_stored;
            self.description.open(self.target, self.state, self.new, !is_generated && !self.has_triggers());
        }
    }

    fn has_triggers(&self) -> bool {
        // SAFETY: the target lives until `drop`.
        unsafe { !(*self.target).ri_TrigDesc.is_null() }
    }

    /// # Safety
    /// The slot holds a row.
    unsafe fn constrain(&mut self, command: pg_sys::CmdType::Type) {
        // SAFETY: table, slot and state belong to this writer; calls that may raise are in pgrx's guard.
        unsafe {
            let constraints = (*(*self.relation).rd_att).constr;
            if constraints.is_null() {
                return;
            }
            if (*constraints).has_generated_stored {
                pg_sys::ffi::pg_guard_ffi_boundary(|| {
                    ExecComputeStoredGenerated(self.target, self.state, self.new, command);
                });
            }
            pg_sys::ExecConstraints(self.target, self.new, self.state);
        }
    }

    /// # Safety
    /// The slot holds a row, and [`begin_row`](Self::begin_row) was called.
    unsafe fn insert_unless_taken(&mut self) -> bool {
        // SAFETY: table, slot and state belong to this writer. The table's access method may raise, so it is called in
        // pgrx's guard.
        unsafe {
            let xid = pg_sys::GetCurrentTransactionId();
            let method = &*(*self.relation).rd_tableam;
            let (Some(insert), Some(complete)) = (method.tuple_insert_speculative, method.tuple_complete_speculative)
            else {
                pgrx::error!("the access method of a table of mantle has no speculative insertion");
            };
            loop {
                // Another transaction that inserts the same key now waits for this insertion, not for the whole
                // transaction.
                let token = pg_sys::SpeculativeInsertionLockAcquire(xid);
                let command = (*self.state).es_output_cid;
                pg_sys::ffi::pg_guard_ffi_boundary(|| {
                    insert(self.relation, self.new, command, 0, std::ptr::null_mut(), token);
                });
                let mut conflict = false;
                let rechecked = versions::insert_entries_if_free(self.target, self.new, self.state, &mut conflict);
                pg_sys::ffi::pg_guard_ffi_boundary(|| complete(self.relation, self.new, token, !conflict));
                pg_sys::SpeculativeInsertionLockRelease(xid);
                if !conflict {
                    pg_sys::ExecARInsertTriggers(self.state, self.target, self.new, rechecked, std::ptr::null_mut());
                    return true;
                }
                // INSERT also checks before its first try. That would cost every new row a probe, only to save a dead
                // row where the key is taken. This waits for the transaction that has the key; if it fails, the key is
                // free again.
                if !versions::is_free(self.target, self.new, self.state) {
                    return false;
                }
            }
        }
    }

    /// Locks a row that is about to be replaced. `false` if another transaction holds it or has changed it since it was read.
    fn lock(&mut self, row: &TupleCopy) -> bool {
        // SAFETY: the table is open; the tuple needs only the position of a row that existed when it was read.
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

    /// Removes a row that no other transaction changes: a latch keeps them away. Else an error.
    pub fn delete(&mut self, row: &TupleCopy) {
        // SAFETY: as for `update`.
        unsafe {
            (*self.old).tts_tid = (*row.0).t_self;
            let mut recheck = std::mem::zeroed::<pg_sys::EPQState>();
            self.begin_row();
            pg_sys::ExecSimpleRelationDelete(self.target, self.state, &mut recheck, self.old);
        }
        self.end_row();
    }

    /// Replaces columns of a row that no other transaction changes: a latch keeps them away.
    pub fn update(&mut self, row: &TupleCopy, values: impl Iterator<Item = (i32, Value)>) {
        // SAFETY: as for `insert`. `recheck` may be zero: it is used only if the row has changed.
        unsafe {
            self.set_copy(row, values);
            (*self.old).tts_tid = (*row.0).t_self;
            let mut recheck = std::mem::zeroed::<pg_sys::EPQState>();
            self.begin_row();
            self.open_indexes();
            pg_sys::ExecSimpleRelationUpdate(self.target, self.state, &mut recheck, self.old, self.new);
        }
        self.end_row();
    }

    /// Replaces columns of a row, unless another transaction holds it or has changed it since it was read: then `false`, and
    /// nothing is written. It does not wait.
    pub fn update_if_free(&mut self, row: &TupleCopy, values: impl Iterator<Item = (i32, Value)> + Clone) -> bool {
        // A trigger is run before the row is replaced, and for that PostgreSQL waits until the row is free.
        if !self.has_triggers() {
            // SAFETY: as for `insert`.
            let result = unsafe {
                self.set_copy(row, values.clone());
                self.begin_row();
                self.constrain(pg_sys::CmdType::CMD_UPDATE);
                self.try_replace(row)
            };
            self.end_row();
            // This transaction may hold the row itself.
            if result != pg_sys::TM_Result::TM_BeingModified {
                return result == pg_sys::TM_Result::TM_Ok;
            }
        }
        let is_free = self.lock(row);
        if is_free {
            self.update(row, values);
        }
        is_free
    }

    /// One WAL record, where a lock of the row would be another.
    ///
    /// # Safety
    /// The slot holds a row, and [`begin_row`](Self::begin_row) was called.
    unsafe fn try_replace(&mut self, row: &TupleCopy) -> pg_sys::TM_Result::Type {
        // SAFETY: table, slot and state belong to this writer. The table's access method may raise, so it is called in
        // pgrx's guard. The rest is plain data that it sets.
        unsafe {
            let Some(update) = (*(*self.relation).rd_tableam).tuple_update else {
                pgrx::error!("the access method of a table of mantle has no updates");
            };
            let mut place = (*row.0).t_self;
            let (mut seen, mut mode) = (std::mem::zeroed::<pg_sys::TM_FailureData>(), 0);
            let mut needed = versions::NO_ENTRIES;
            let (command, no_snapshot) = ((*self.state).es_output_cid, std::ptr::null_mut());
            let result = pg_sys::ffi::pg_guard_ffi_boundary(|| {
                update(
                    self.relation,
                    &mut place,
                    self.new,
                    command,
                    no_snapshot,
                    no_snapshot,
                    false,
                    &mut seen,
                    &mut mode,
                    &mut needed,
                )
            });
            if result == pg_sys::TM_Result::TM_Ok && needed != versions::NO_ENTRIES {
                self.open_indexes();
                versions::insert_entries_of_update(self.target, self.new, self.state, needed);
            }
            result
        }
    }

    /// # Safety
    /// The values have the columns' types.
    unsafe fn set_all(&mut self, values: impl Iterator<Item = (i32, Value)>) {
        // SAFETY: the slot has one place for each column.
        unsafe {
            pg_sys::ExecClearTuple(self.new);
            std::slice::from_raw_parts_mut((*self.new).tts_isnull, self.width()).fill(true);
            self.set(values);
        }
    }

    /// # Safety
    /// The row is one of this table; the values have the columns' types.
    unsafe fn set_copy(&mut self, row: &TupleCopy, values: impl Iterator<Item = (i32, Value)>) {
        // SAFETY: the slot has one place for each column.
        unsafe {
            pg_sys::ExecClearTuple(self.new);
            pg_sys::heap_deform_tuple(row.0, (*self.relation).rd_att, (*self.new).tts_values, (*self.new).tts_isnull);
            self.set(values);
        }
    }

    /// # Safety
    /// The values have the columns' types; the slot's other columns are set.
    unsafe fn set(&mut self, values: impl Iterator<Item = (i32, Value)>) {
        // SAFETY: the numbers are those of this table's columns, and the slot has a place for each.
        unsafe {
            for (column, value) in values {
                let at = column as usize - 1;
                *(*self.new).tts_values.add(at) = value.unwrap_or(pg_sys::Datum::null());
                *(*self.new).tts_isnull.add(at) = value.is_none();
            }
            pg_sys::ExecStoreVirtualTuple(self.new);
        }
    }

    fn width(&self) -> usize {
        // SAFETY: the description lives until `drop`.
        unsafe { (*(*self.relation).rd_att).natts as usize }
    }

    /// Begins a new statement, as far as triggers and visibility are concerned.
    fn begin_row(&mut self) {
        // SAFETY: the state belongs to this writer. `end_row`, or the end of a failed transaction, ends what begins
        // here.
        unsafe {
            (*self.state).es_output_cid = pg_sys::GetCurrentCommandId(true);
            pg_sys::AfterTriggerBeginQuery();
        }
    }

    /// Makes the row visible to later commands, runs triggers that a user has added, and frees the memory that
    /// predicates of PostgreSQL indexes took.
    fn end_row(&mut self) {
        // SAFETY: the context, if any, belongs to the state, and nothing in it is used after a row.
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
        // During a panic the failed transaction closes everything.
        if !std::thread::panicking() {
            // SAFETY: opened by `open`, closed once. The locks last until the transaction ends, like a statement's.
            unsafe {
                pg_sys::ExecDropSingleTupleTableSlot(self.new);
                pg_sys::ExecDropSingleTupleTableSlot(self.old);
                versions::close_indexes(self.target, pg_sys::RowExclusiveLock as pg_sys::LOCKMODE);
                // Free the tuple slots used by triggers.
                pg_sys::ExecResetTupleTable((*self.state).es_tupleTable, false);
                pg_sys::FreeExecutorState(self.state);
                pg_sys::table_close(self.relation, pg_sys::NoLock as pg_sys::LOCKMODE);
            }
        }
    }
}
