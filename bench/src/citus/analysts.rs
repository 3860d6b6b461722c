//! What analysts ask of a listing that was loaded into both.

use std::path::Path;

use anyhow::{Result, ensure};

use super::site::Site;
use crate::{
    measure::{
        analysts::{CALLS, ask, name},
        load::import_into,
    },
    report::{Report, count, short},
    sql::Analysis,
};

const NAMESPACE: &str = "bench-analysts";
/// `du` of everything, on Citus.
const DU_S_MAX: f64 = 10.0;

/// Measures at the coordinator and at the plain database; whether the bound is held.
pub async fn run(
    plain: (&Site, &str),
    citus: (&Site, &str),
    mantle: &Path,
    listing: &Path,
    report: &mut Report,
) -> Result<bool> {
    report.heading("What analysts ask");
    report.paragraph(&format!(
        "The listing in a namespace of its own, loaded by `mantle import` (Citus: through the coordinator); nothing else runs. \
         Seconds, as the owner, the middle one of {CALLS}; the ratio is to plain."
    ));
    for (which, (site, url)) in [("plain", plain), ("Citus", citus)] {
        let id = site.admin().allocate_ids(1).await?;
        site.admin().create_namespace(NAMESPACE, id).await?;
        let summary = import_into(mantle, NAMESPACE, listing, url, "").await?;
        report.block(&format!("{which}: {}", summary.lines().next().unwrap_or_default()));
        site.admin().vacuum().await?;
    }
    let (mut rows, mut du) = (Vec::new(), f64::NAN);
    for analysis in Analysis::ALL {
        let (expected, baseline) = ask(plain.0.admin(), analysis, NAMESPACE).await?;
        let (answered, seconds) = ask(citus.0.admin(), analysis, NAMESPACE).await?;
        ensure!(answered == expected, "{} answered {answered} rows on Citus, not {expected}", analysis.text());
        if analysis.text() == Analysis::ALL[0].text() {
            du = seconds;
        }
        rows.push([name(analysis), count(answered as u64), short(baseline), short(seconds), short(seconds / baseline)]);
        eprintln!("  {}", analysis.text());
    }
    report.table(["statement", "rows", "plain, s", "Citus, s", "to plain"], &rows);
    let held = du < DU_S_MAX;
    report.paragraph(&format!(
        "`du` of the whole listing takes less than {} s on Citus: it takes {} s. **{}**",
        short(DU_S_MAX),
        short(du),
        if held { "Held." } else { "Not held." }
    ));
    Ok(held)
}
