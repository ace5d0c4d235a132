//! LISTs, page by page.

use std::fmt::Write;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::de::DeserializeOwned;

use crate::facts::kubernetes::KubernetesFailure;
use crate::orchestrator::kubernetes::{
    objects::Page,
    transport::{Call, Session},
};

/// Objects that one page holds.
pub const PAGE_SIZE: usize = 500;
/// Pages after which a list is given up, so that a faulty server cannot keep it going. They hold 500,000 objects.
const MAX_PAGES: usize = 1_000;
/// Everything but RFC 3986's unreserved characters.
const QUERY: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// All objects of a collection at one moment.
///
/// The list is a quorum read: without a resourceVersion the API server's cache answers only once it is as new as etcd.
/// Its pages are of one snapshot. If that expires between two pages (410), the list starts anew, once.
pub(crate) async fn list<T: DeserializeOwned>(
    session: &mut Session<'_>,
    path: &str,
    field_selector: Option<&str>,
) -> Result<Vec<T>, KubernetesFailure> {
    let mut may_restart = true;
    let mut items = Vec::new();
    let mut next = String::new();
    for _ in 0..MAX_PAGES {
        let answer = session.send(Call::get(target(path, field_selector, &next))).await?;
        if answer.status == 410 && !next.is_empty() && may_restart {
            may_restart = false;
            items.clear();
            next.clear();
            continue;
        }
        let page: Page<T> = answer.object()?;
        items.extend(page.items);
        if page.metadata.next.is_empty() {
            return Ok(items);
        }
        next = page.metadata.next;
    }
    Err(KubernetesFailure::Other(format!("the list of {path} has more than {MAX_PAGES} pages")))
}

fn target(path: &str, field_selector: Option<&str>, next: &str) -> String {
    let mut target = format!("{path}?limit={PAGE_SIZE}");
    for (key, value) in [("fieldSelector", field_selector), ("continue", Some(next).filter(|next| !next.is_empty()))] {
        if let Some(value) = value {
            // Writing to a String cannot fail.
            let _ = write!(target, "&{key}={}", utf8_percent_encode(value, QUERY));
        }
    }
    target
}
