//! Descriptions of the tables that a session writes to: their PostgreSQL indexes and checks.
//!
//! The executor describes and locks all indexes of its target anew in each statement, and compiles the predicates of partial
//! ones, and the table's checks. The MetaTable has six partial indexes, and most rows belong into one or two. So a
//! description is made once, and an index is locked and opened only for a row that it has an entry for.
//!
//! Invariant: a description is used while the table is locked for writing. Then its set of indexes stays, except for those
//! that are made or dropped CONCURRENTLY, which wait for such locks where it matters. What PostgreSQL reports of the
//! table or an index discards the description ([`forget`]).

use std::{
    cell::{Cell, RefCell},
    mem,
    rc::Rc,
};

use pgrx::pg_sys;

use super::versions;

/// Tables that a session remembers. On Citus each shard is one.
const TABLES_KEPT_MAX: usize = 64;

thread_local! {
    static KEPT: RefCell<Vec<Rc<Description>>> = const { RefCell::new(Vec::new()) };
    /// How often [`forget`] was called.
    static CHANGES: Cell<u64> = const { Cell::new(0) };
}

/// What a table needs of each row that is written to it.
pub struct Description {
    table: pg_sys::Oid,
    oids: Vec<pg_sys::Oid>,
    infos: Vec<*mut pg_sys::IndexInfo>,
    checks: Vec<*mut pg_sys::ExprState>,
    /// Its memory has the descriptions and the compiled predicates.
    state: *mut pg_sys::EState,
    /// Other access methods keep pointers to the opened index in its description.
    are_btrees: bool,
}

/// The description of a table that is locked for writing.
///
/// # Safety
/// The table is open.
pub unsafe fn of(table: pg_sys::Relation) -> Rc<Description> {
    // SAFETY: see above.
    let oid = unsafe { (*table).rd_id };
    // Nothing reads a catalog while KEPT is borrowed, so no report arrives.
    if let Some(kept) = KEPT.with_borrow(|kept| kept.iter().find(|of| of.table == oid).cloned()) {
        return kept;
    }
    let before = CHANGES.get();
    // SAFETY: see above.
    let described = Rc::new(unsafe { Description::new(table) });
    if before == CHANGES.get() && described.are_btrees {
        // SAFETY: both contexts are alive. Until here an error frees the descriptions with the transaction.
        unsafe { pg_sys::MemoryContextSetParent((*described.state).es_query_cxt, pg_sys::TopMemoryContext) };
        KEPT.with_borrow_mut(|kept| {
            if kept.len() >= TABLES_KEPT_MAX {
                kept.clear();
            }
            kept.push(described.clone());
        });
    }
    described
}

impl Description {
    /// # Safety
    /// The table is open.
    unsafe fn new(table: pg_sys::Relation) -> Self {
        let (mut oids, mut infos, mut are_btrees) = (Vec::new(), Vec::new(), true);
        let lock = pg_sys::RowExclusiveLock as pg_sys::LOCKMODE;
        // SAFETY: the list and the indexes are closed or freed here, or by the end of a failed transaction. What the steps
        // allocate is in the state's memory.
        unsafe {
            let state = pg_sys::CreateExecutorState();
            let before = pg_sys::MemoryContextSwitchTo((*state).es_query_cxt);
            let list = pg_sys::RelationGetIndexList(table);
            let length = if list.is_null() { 0 } else { (*list).length as usize };
            for at in 0..length {
                let oid = (*(*list).elements.add(at)).oid_value;
                let index = pg_sys::index_open(oid, lock);
                let info = pg_sys::BuildIndexInfo(index);
                if (*info).ii_Unique {
                    pg_sys::BuildSpeculativeIndexInfo(index, info);
                }
                if !(*info).ii_Predicate.is_null() {
                    (*info).ii_PredicateState = pg_sys::ExecPrepareQual((*info).ii_Predicate, state);
                }
                if !(*info).ii_Expressions.is_null() {
                    (*info).ii_ExpressionsState = pg_sys::ExecPrepareExprList((*info).ii_Expressions, state);
                }
                are_btrees &= (*(*index).rd_rel).relam == pg_sys::BTREE_AM_OID;
                pg_sys::index_close(index, lock);
                oids.push(oid);
                infos.push(info);
            }
            let constraints = (*(*table).rd_att).constr;
            let count = if constraints.is_null() { 0 } else { (*constraints).num_check as usize };
            let compiled = |at| {
                let check = &*(*constraints).check.add(at);
                if !versions::is_enforced(check) {
                    return std::ptr::null_mut();
                }
                pg_sys::ExecPrepareExpr(pg_sys::stringToNode(check.ccbin).cast(), state)
            };
            let checks = (0..count).map(compiled).collect();
            pg_sys::MemoryContextSwitchTo(before);
            Self { table: (*table).rd_id, oids, infos, checks, state, are_btrees }
        }
    }

    /// Gives a target its checks, and its indexes, none of them opened.
    ///
    /// # Safety
    /// They are the target's, and outlive it. The target is in the state's memory.
    pub unsafe fn attach(&self, target: *mut pg_sys::ResultRelInfo, state: *mut pg_sys::EState) {
        let size = self.oids.len() * mem::size_of::<pg_sys::Relation>();
        // SAFETY: see above. The executor changes what it is given, but not these lists.
        unsafe {
            if !self.checks.is_empty() {
                versions::set_checks(target, self.checks.as_ptr().cast_mut());
            }
            (*target).ri_NumIndices = self.oids.len() as i32;
            (*target).ri_IndexRelationDescs = pg_sys::MemoryContextAllocZero((*state).es_query_cxt, size).cast();
            (*target).ri_IndexRelationInfo = self.infos.as_ptr().cast_mut();
        }
    }

    /// Opens the indexes that have an entry for a row; all if `is_final` is false, because the row may still change.
    ///
    /// # Safety
    /// They are attached to the target, whose state has the row in its slot.
    pub unsafe fn open(
        &self,
        target: *mut pg_sys::ResultRelInfo,
        state: *mut pg_sys::EState,
        row: *mut pg_sys::TupleTableSlot,
        is_final: bool,
    ) {
        // SAFETY: see above. `versions::close_indexes` closes what is opened here.
        unsafe {
            if (*state).es_per_tuple_exprcontext.is_null() {
                pg_sys::MakePerTupleExprContext(state);
            }
            let context = (*state).es_per_tuple_exprcontext;
            (*context).ecxt_scantuple = row;
            for (at, (oid, info)) in self.oids.iter().zip(&self.infos).enumerate() {
                let opened = (*target).ri_IndexRelationDescs.add(at);
                if (*opened).is_null() && (!is_final || is_true((**info).ii_PredicateState, context)) {
                    *opened = pg_sys::index_open(*oid, pg_sys::RowExclusiveLock as pg_sys::LOCKMODE);
                }
            }
        }
    }
}

impl Drop for Description {
    fn drop(&mut self) {
        // SAFETY: made by `new`; nobody else has it.
        unsafe { pg_sys::MemoryContextDelete((*self.state).es_query_cxt) };
    }
}

/// Whether the row of a context meets a compiled predicate; a missing one is met.
///
/// # Safety
/// The predicate is compiled for rows of this kind.
unsafe fn is_true(predicate: *mut pg_sys::ExprState, context: *mut pg_sys::ExprContext) -> bool {
    if predicate.is_null() {
        return true;
    }
    // SAFETY: see above. It may raise, so it is called in pgrx's guard.
    unsafe {
        let Some(evaluate) = (*predicate).evalfunc else { return true };
        let (mut is_null, before) = (false, pg_sys::MemoryContextSwitchTo((*context).ecxt_per_tuple_memory));
        let answer = pg_sys::ffi::pg_guard_ffi_boundary(|| evaluate(predicate, context, &mut is_null));
        pg_sys::MemoryContextSwitchTo(before);
        answer.value() != 0
    }
}

/// Forgets a table whose definition, or one of whose indexes', has changed; all for `InvalidOid`. Called by PostgreSQL.
pub fn forget(relation: pg_sys::Oid) {
    CHANGES.set(CHANGES.get() + 1);
    let is_it =
        |of: &Description| relation == pg_sys::InvalidOid || of.table == relation || of.oids.contains(&relation);
    KEPT.with_borrow_mut(|kept| kept.retain(|of| !is_it(of)));
}
