//! openraft's own test suite over our log and state machine, and the golden bytes of what they write.

mod formats;

use openraft::{
    StorageError,
    testing::log::{StoreBuilder, Suite},
};
use tempfile::TempDir;

use super::{
    TypeConfig, disk_executor::DiskExecutor, log::LogStore, machine::Machine, snapshot::SnapshotStore,
    state::IndexState,
};

struct Builder;

impl StoreBuilder<TypeConfig, LogStore, Machine, TempDir> for Builder {
    async fn build(&self) -> Result<(TempDir, LogStore, Machine), StorageError<TypeConfig>> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let log = LogStore::open(&folder.path().join("log")).expect("a new log");
        let snapshots = SnapshotStore::open(&folder.path().join("snapshots")).expect("a folder of snapshots");
        let state = std::sync::Arc::new(IndexState::new(&Default::default()));
        let machine = Machine::new(state, snapshots, DiskExecutor::Threads);
        Ok((folder, log, machine))
    }
}

#[test]
fn log_and_state_machine_pass_the_suite_of_openraft() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async { Suite::test_all(Builder).await.unwrap() });
}
