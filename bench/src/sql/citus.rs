//! Statements of the Citus measurements: each verb as one prepared statement that answers how many elements were
//! refused, and the counters of servers and cluster.

use anyhow::{Result, ensure};
use tokio_postgres::{Statement, types::ToSql};
use uuid::Uuid;

use super::{
    PUT_OBJECT, Session,
    proof::{Rename, Signer},
};

const MKDIR: &str = "SELECT count(*) FILTER (WHERE code IS NOT NULL) FROM mantle.mkdir(ARRAY[1000], ARRAY[$1::bigint], \
     ARRAY[$2::bigint], ARRAY[$3::text], ARRAY[$4::bigint], ARRAY[1000], ARRAY[1000], ARRAY[493], ARRAY[true], \
     ARRAY[NULL::jsonb], ARRAY[$5::uuid], ARRAY[0::bigint], p_caller => '{0}')";
const DELETE_OBJECT: &str = "SELECT count(*) FILTER (WHERE code IS NOT NULL) FROM mantle.delete_object(ARRAY[1000], \
     ARRAY[$1::bigint], ARRAY[$2::bigint], ARRAY[$3::text], ARRAY[NULL::bigint], ARRAY[NULL::bigint], ARRAY[$4::uuid], \
     ARRAY[0::bigint], p_caller => '{0}')";
const STAT: &str =
    "SELECT count(*) FILTER (WHERE code IS NOT NULL) FROM mantle.stat($1, ARRAY[$2::bigint], ARRAY[$3::text])";
// With types, because `mantle.list` has a variant for batches.
const LIST: &str = "SELECT abs(count(*) - $3::bigint) FROM mantle.list($1::bigint, $2::bigint, NULL::text, NULL::text, $3::bigint::int)";
const RENAME_OBJECT: &str = "SELECT count(code) FROM mantle.rename_object(1000, $1, $2, $3, $4, $3, false, $5, 0, \
     p_caller => '0')";
// The index numbers the attempts of a rename; the bench needs only numbers that do not repeat.
const RENAME_DIRECTORY: &str = "SELECT count(code) FROM mantle.rename_directory(1000, $1, $2, $3, $6, $4, $3, 0, 1, $7, $8, $5, 0, \
     p_caller => '0', p_proof => $9)";
const COUNTERS: &str = "SELECT query_execution_single_shard + query_execution_multi_shard, \
     connection_establishment_succeeded + connection_reused FROM citus_stat_counters WHERE name = current_database()";

pub struct Verbs {
    mkdir: Statement,
    put_object: Statement,
    delete_object: Statement,
    stat: Statement,
    list: Statement,
    rename_object: Statement,
    rename_directory: Statement,
}

/// One call. `PutObject` puts `count` objects with the ids from `id` on; `List` expects `count` entries.
pub enum Call<'a> {
    Mkdir { pid: i64, id: i64 },
    PutObject { pid: i64, id: i64, count: usize },
    DeleteObject { pid: i64, name: &'a str },
    Stat { pid: i64, name: &'a str },
    List { pid: i64, count: i64 },
    RenameObject { from: i64, to: i64, name: &'a str },
    RenameDirectory { from: i64, to: i64, name: &'a str, id: i64, attempt: i64, signer: &'a Signer },
}

impl Session {
    pub async fn prepare_verbs(&self) -> Result<Verbs> {
        let prepare = |sql| self.client.prepare(sql);
        Ok(Verbs {
            mkdir: prepare(MKDIR).await?,
            put_object: prepare(PUT_OBJECT).await?,
            delete_object: prepare(DELETE_OBJECT).await?,
            stat: prepare(STAT).await?,
            list: prepare(LIST).await?,
            rename_object: prepare(RENAME_OBJECT).await?,
            rename_directory: prepare(RENAME_DIRECTORY).await?,
        })
    }

    /// Runs a call; an error if an element is refused.
    pub async fn call(&self, verbs: &Verbs, ns: i64, call: &Call<'_>) -> Result<()> {
        let request = Uuid::new_v4();
        let proof;
        let (statement, params): (_, Vec<&(dyn ToSql + Sync)>) = match call {
            Call::PutObject { pid, id, count } => {
                return self.put_objects(&verbs.put_object, ns, vec![*pid; *count], *id).await;
            }
            Call::Mkdir { pid, id } => {
                let name = format!("d{id}/");
                return self.refused(&verbs.mkdir, &[&ns, pid, &name, id, &request]).await;
            }
            Call::DeleteObject { pid, name } => (&verbs.delete_object, vec![&ns, pid, name, &request]),
            Call::Stat { pid, name } => (&verbs.stat, vec![&ns, pid, name]),
            Call::List { pid, count } => (&verbs.list, vec![&ns, pid, count]),
            Call::RenameObject { from, to, name } => (&verbs.rename_object, vec![&ns, from, name, to, &request]),
            Call::RenameDirectory { from, to, name, id, attempt, signer } => {
                let (source, destination) = ((*from, *name, *id), (*to, *name));
                proof = signer.sign(&Rename { ns, request, attempt: *attempt, source, destination });
                (&verbs.rename_directory, vec![&ns, from, name, to, &request, id, &signer.epoch, attempt, &proof])
            }
        };
        self.refused(statement, &params).await
    }

    async fn refused(&self, statement: &Statement, params: &[&(dyn ToSql + Sync)]) -> Result<()> {
        let row = self.client.query_one(statement, params).await?;
        ensure!(row.get::<_, i64>(0) == 0, "a call was refused");
        Ok(())
    }

    /// The directories of `ids` that are on this node.
    pub async fn local(&self, ids: &[i64]) -> Result<Vec<i64>> {
        let sql = "SELECT id FROM unnest($1::bigint[]) AS id WHERE mantle.is_local(ARRAY[id])";
        Ok(self.client.query(sql, &[&ids]).await?.iter().map(|row| row.get(0)).collect())
    }

    /// Process id of a child of the postmaster; only as superuser.
    pub async fn server_process(&self) -> Result<i32> {
        self.value("SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'", &[]).await
    }

    /// Version of Citus and number of the MetaTable's shards.
    pub async fn citus(&self) -> Result<(String, i64)> {
        let version = self.value("SELECT extversion FROM pg_extension WHERE extname = 'citus'", &[]).await?;
        let shards = "SELECT count(*) FROM pg_dist_shard WHERE logicalrelid = 'mantle.meta'::regclass";
        Ok((version, self.value(shards, &[]).await?))
    }

    /// Citus' counters of this node since its start (needs `citus.enable_stat_counters`): executed statements, and
    /// connections to other nodes that were opened or reused.
    pub async fn counters(&self) -> Result<[i64; 2]> {
        let row = self.client.query_one(COUNTERS, &[]).await?;
        Ok([row.get(0), row.get(1)])
    }
}
