//! The part of each report that only limits with tenants have.

use super::{
    Report, SharesReport,
    format::{grouped, percent},
};
use crate::{escape::printable, numbers::counted, replay::TenantFindings};

/// The heads of the columns.
pub(super) const HEADS: [&str; 6] = [
    "tenant",
    "terms",
    "requests",
    "denied without shares",
    "denied",
    "admitted of its part",
];

/// The result in words, and a row of cells for each of the `most` tenants with the most requests.
pub(super) fn sections(
    report: &Report,
    most: usize,
) -> impl Iterator<Item = (String, Vec<[String; 6]>)> {
    report.shares.iter().map(move |shared| {
        let tenants = shared.findings.tenants.iter().take(most);
        (said(shared), tenants.map(cells).collect())
    })
}

fn said(shared: &SharesReport) -> String {
    let found = &shared.findings;
    let name = if shared.name.is_empty() {
        String::new()
    } else {
        format!("{}, ", shared.name)
    };
    format!(
        "{name}{} with {}, shared by {} ({}): denies {} of {} requests ({}), and {} ({}) without shares. \
         Weighted Jain's index is {:.3}, and {:.3} without shares.",
        found.limit,
        found.algorithm,
        counted(found.tenants.len() as u64, "tenant"),
        shared.by,
        grouped(found.denied),
        grouped(found.requests),
        percent(found.denied, found.requests),
        grouped(found.denied_without),
        percent(found.denied_without, found.requests),
        found.jain,
        found.jain_without,
    )
}

fn cells(tenant: &TenantFindings) -> [String; 6] {
    let denied = |denied| format!("{} ({})", grouped(denied), percent(denied, tenant.requests));
    [
        printable(&tenant.tenant, 48),
        tenant.terms.clone(),
        grouped(tenant.requests),
        denied(tenant.denied_without),
        denied(tenant.denied),
        format!(
            "{} of {:.0}",
            grouped(tenant.admitted_units),
            tenant.fair_units
        ),
    ]
}
