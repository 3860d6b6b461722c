//! Batches of lookups on the wire: columns instead of one message for each query.

use mantle_types::{Caller, Error, ErrorCode, Result};

use crate::{model::Query, proto::ResolveRequest};

pub(crate) fn push(request: &mut ResolveRequest, query: &Query) {
    request.paths.push_str(query.path());
    request.path_bytes.push(query.path().len() as u32);
    match (request.namespaces.last(), request.namespace_queries.last_mut()) {
        (Some(last), Some(queries)) if **last == *query.namespace => *queries += 1,
        _ => {
            request.namespaces.push(query.namespace.to_string());
            request.namespace_queries.push(1);
        }
    }
    match (request.callers.last(), request.caller_queries.last_mut()) {
        (Some(last), Some(queries)) if last.uid == query.caller.uid && last.gids == query.caller.gids => *queries += 1,
        _ => {
            request.callers.push((&*query.caller).into());
            request.caller_queries.push(1);
        }
    }
}

/// A query of a batch, as a replica reads it.
#[derive(Clone, Copy, Debug)]
pub struct QueryRef<'a> {
    /// The namespace's name.
    pub namespace: &'a str,
    /// Components with `/` between two; empty for the root.
    pub path: &'a str,
    /// The caller whose permissions count.
    pub caller: &'a Caller,
}

/// The queries of a batch; `callers` are those of the request. `invalid_argument` if its columns are inconsistent.
pub fn queries<'a>(request: &'a ResolveRequest, callers: &'a [Caller]) -> Result<Vec<QueryRef<'a>>> {
    let unfit = || Error::new(ErrorCode::InvalidArgument, "the columns of a batch of lookups do not fit together");
    let mut namespaces = runs(&request.namespaces, &request.namespace_queries);
    let mut callers = runs(callers, &request.caller_queries);
    let mut queries = Vec::with_capacity(request.path_bytes.len());
    let mut start = 0_usize;
    for bytes in &request.path_bytes {
        let end = start.checked_add(*bytes as usize).ok_or_else(unfit)?;
        let path = request.paths.get(start..end).ok_or_else(unfit)?;
        start = end;
        let (namespace, caller) = namespaces.next().zip(callers.next()).ok_or_else(unfit)?;
        queries.push(QueryRef { namespace, path, caller });
    }
    if start != request.paths.len() || namespaces.next().is_some() || callers.next().is_some() {
        return Err(unfit());
    }
    Ok(queries)
}

/// Repeats each value by its count.
fn runs<'a, T>(values: &'a [T], counts: &'a [u32]) -> impl Iterator<Item = &'a T> {
    values.iter().zip(counts).flat_map(|(value, count)| std::iter::repeat_n(value, *count as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(uid: u32) -> Caller {
        Caller { uid, gids: vec![uid, 5] }
    }

    fn callers(request: &ResolveRequest) -> Vec<Caller> {
        request.callers.iter().cloned().map(Caller::from).collect()
    }

    #[test]
    fn queries_survive_the_wire() {
        let sent = [
            Query::new("one", [], caller(1)),
            Query::new("one", ["a", "b"], caller(1)),
            Query::new("two", ["\u{e4}"], caller(1)),
            Query::new("two", ["a"], caller(2)),
            Query::new("one", ["a"], caller(2)),
        ];
        let mut request = ResolveRequest::default();
        sent.iter().for_each(|query| push(&mut request, query));
        assert_eq!((request.namespaces.len(), request.callers.len()), (3, 2));
        let callers = callers(&request);
        let received = queries(&request, &callers).unwrap();
        let as_sent: Vec<_> = sent.iter().map(|q| (&*q.namespace, q.path(), &*q.caller)).collect();
        assert_eq!(received.iter().map(|q| (q.namespace, q.path, q.caller)).collect::<Vec<_>>(), as_sent);
    }

    #[test]
    fn columns_that_do_not_fit_are_refused() {
        let mut good = ResolveRequest::default();
        push(&mut good, &Query::new("one", ["\u{e4}"], caller(1)));
        push(&mut good, &Query::new("one", ["b"], caller(1)));
        type Edit = fn(&mut ResolveRequest);
        let edits: [Edit; 8] = [
            |r| r.path_bytes[0] = 1,
            |r| r.path_bytes[1] = u32::MAX,
            |r| r.path_bytes.truncate(1),
            |r| r.paths.push('x'),
            |r| r.namespaces.clear(),
            |r| r.namespace_queries[0] = 1,
            |r| r.caller_queries[0] = u32::MAX,
            |r| r.callers.clear(),
        ];
        for (i, edit) in edits.iter().enumerate() {
            let mut request = good.clone();
            edit(&mut request);
            assert!(queries(&request, &callers(&request)).is_err(), "edit {i}");
        }
    }
}
