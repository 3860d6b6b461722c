//! Recorded answers of requests (P19). Each is where its change was, and a retry does not know where that is. So all nodes search
//! their own rows, and wait for whoever is recording the answer.

use std::collections::BTreeSet;

use futures::future::try_join_all;
use mantle_types::{NamespaceId, Result};
use tokio_postgres::{Row, types::Type};

use super::{
    RequestClaim, Store,
    database::Param,
    rows::{self, Written},
    sql::{self, Statement},
};

/// The statements of a search.
struct Search {
    /// Of all rows, by one node.
    whole: &'static Statement,
    /// Of the rows of the node that is asked.
    local: &'static Statement,
}

const IN_NAMESPACE: Search = Search { whole: &sql::REPLAY, local: &sql::REPLAY_LOCAL };
const OF_NAMESPACE: Search = Search { whole: &sql::REPLAY_NAMESPACE, local: &sql::REPLAY_NAMESPACE_LOCAL };

impl Store {
    /// The recorded answer of a request in a namespace, and the namespace's id; `None` when there is none. Waits for an
    /// attempt that is recording its answer on any node.
    ///
    /// # Errors
    /// That attempt takes longer than changes may wait for locks; or a node does not answer.
    pub async fn replay(&self, claim: RequestClaim, namespace: &str) -> Result<Option<(NamespaceId, Written)>> {
        let principal = claim.principal as i32;
        let params: [Param<'_>; 4] = [
            (&principal, Type::INT4),
            (&namespace, Type::TEXT),
            (&claim.request, Type::UUID),
            (&claim.hash, Type::INT8),
        ];
        self.search(IN_NAMESPACE, &params).await
    }

    /// The recorded answer of a request that created or removed a namespace, as [`Self::replay`].
    pub async fn replay_namespace(&self, claim: RequestClaim) -> Result<Option<Written>> {
        let principal = claim.principal as i32;
        let params: [Param<'_>; 3] =
            [(&principal, Type::INT4), (&claim.request, Type::UUID), (&claim.hash, Type::INT8)];
        Ok(self.search(OF_NAMESPACE, &params).await?.map(|(_, written)| written))
    }

    async fn search(&self, search: Search, params: &[Param<'_>]) -> Result<Option<(NamespaceId, Written)>> {
        if !self.nodes.is_single().await? {
            let nodes = self.nodes.with_directories().await?;
            let answers =
                try_join_all(nodes.iter().map(|node| node.database.query(search.local, params, false))).await?;
            let answers: Vec<Row> = answers.into_iter().flatten().collect();
            if are_whole(&answers.iter().map(Searched::read).collect::<Result<Vec<_>>>()?) {
                return recorded(most_telling(&answers)?);
            }
            // Those nodes have waited. What follows sees what they have waited for.
        }
        recorded(self.query(search.whole, params).await?.first())
    }
}

/// Where a node has searched.
#[derive(Clone)]
struct Searched {
    /// All places of answers, as the node knows them; `None` if one may have moved during the search.
    placements: Option<Vec<i64>>,
    searched: Vec<i64>,
}

impl Searched {
    fn read(row: &Row) -> Result<Self> {
        Ok(Self { placements: rows::get_opt(row, "placements")?, searched: rows::get(row, "searched")? })
    }
}

/// Whether the nodes have searched every place, and no shard has moved from one to another between their searches.
fn are_whole(answers: &[Searched]) -> bool {
    let Some(Searched { placements: Some(placements), .. }) = answers.first() else { return false };
    let searched: BTreeSet<_> = answers.iter().flat_map(|answer| &answer.searched).collect();
    answers.iter().all(|answer| answer.placements.as_ref() == Some(placements))
        && searched == placements.iter().collect::<BTreeSet<_>>()
}

/// The answer of the node that has recorded the request. Without one, that of a node that may have forgotten it.
fn most_telling(answers: &[Row]) -> Result<Option<&Row>> {
    let mut found = answers.first();
    for row in answers {
        if is_known(row)? {
            return Ok(Some(row));
        }
        if rows::code(row)?.is_some() {
            found = Some(row);
        }
    }
    Ok(found)
}

fn is_known(row: &Row) -> Result<bool> {
    Ok(rows::get_opt(row, "found")?.unwrap_or_default())
}

fn recorded(row: Option<&Row>) -> Result<Option<(NamespaceId, Written)>> {
    let Some(row) = row else { return Ok(None) };
    if let Some(code) = rows::code(row)? {
        return Err(code.into());
    }
    if !is_known(row)? {
        return Ok(None);
    }
    let (_, written) = Written::read(row)?;
    Ok(Some((rows::get::<i64>(row, "ns")?.into(), Written { replayed: true, ..written })))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(placements: &[i64], searched: &[i64]) -> Searched {
        Searched { placements: Some(placements.to_vec()), searched: searched.to_vec() }
    }

    #[test]
    fn answers_of_all_places_make_one() {
        assert!(are_whole(&[node(&[1, 2, 3], &[1, 3]), node(&[1, 2, 3], &[2])]));
    }

    #[test]
    fn a_place_that_nobody_searched_may_have_the_answer() {
        assert!(!are_whole(&[]));
        assert!(!are_whole(&[node(&[1, 2, 3], &[1]), node(&[1, 2, 3], &[2])]));
    }

    /// Each has searched all that it had then: the shard of place 2 was elsewhere both times.
    #[test]
    fn a_shard_that_moved_between_the_searches_may_have_the_answer() {
        assert!(!are_whole(&[node(&[1, 4], &[1]), node(&[1, 2], &[])]));
        let moved_meanwhile = Searched { placements: None, searched: vec![2] };
        assert!(!are_whole(&[node(&[1, 2], &[1]), moved_meanwhile.clone()]));
        assert!(!are_whole(&[moved_meanwhile, node(&[1, 2], &[1])]));
    }
}
