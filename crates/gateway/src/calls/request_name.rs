//! Names of requests. They are unique in a process and may contain the id that the client chose.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use steadfast_core::id::RequestId;
use steadfast_mcp::message::RpcId;

/// The number of the next request of this process.
static NEXT: AtomicU64 = AtomicU64::new(1);
static PROCESS: LazyLock<u32> = LazyLock::new(std::process::id);

/// Separates our number from the client's own id in the name of a request.
const CLIENT_ID_SEPARATOR: char = '#';
/// The longest client id that a request name includes.
const LONGEST_ID: usize = 64;

/// Returns a name for a request, unique in this process. If the client may fetch the answer after a restart of the
/// gateway, the name contains the client's own id, so that the process that finds the record can answer it. An id that
/// is long or has unusual characters is left out. The client then gets the answer by calling again.
#[expect(clippy::expect_used, reason = "it consists of two numbers, a few signs and a checked id")]
pub(crate) fn next_request(of: Option<&RpcId>) -> RequestId {
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let is_plain = |id: &&str| id.len() <= LONGEST_ID && id.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    let text = match of.map(RpcId::as_str).filter(is_plain) {
        Some(id) => format!("mcp-{}-{number}{CLIENT_ID_SEPARATOR}{id}", *PROCESS),
        None => format!("mcp-{}-{number}", *PROCESS),
    };
    RequestId::new(text).expect("it is short and printable")
}

/// Returns the number that the next request of this process gets.
pub(crate) fn next_request_number() -> u64 {
    NEXT.load(Ordering::Relaxed)
}

/// Parses the number of a request in its process, and the client's own id.
pub(crate) fn named(request: &RequestId) -> Option<(u64, RpcId)> {
    let (own, id) = request.as_str().split_once(CLIENT_ID_SEPARATOR)?;
    let (_, number) = own.strip_prefix("mcp-")?.split_once('-')?;
    Some((number.parse().ok()?, RpcId::parse(id)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_request_has_the_id_of_its_client_in_it_if_that_is_plain() {
        for id in ["7", "-1", "\"a#b\"", "\"a b\""] {
            let before = next_request_number();
            let (number, own) = named(&next_request(RpcId::parse(id).as_ref())).unwrap();
            assert_eq!(own.as_str(), id);
            assert!(number >= before);
        }
        let long = format!("\"{}\"", "x".repeat(LONGEST_ID));
        for id in [None, RpcId::parse(&long), RpcId::parse("\"\u{e4}\"")] {
            assert_eq!(named(&next_request(id.as_ref())), None, "{id:?}");
        }
    }
}
