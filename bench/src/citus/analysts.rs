//! Analysts' queries on a listing that is loaded into both databases.

use std::path::Path;

use anyhow::{Result, ensure};

use super::deployment::Deployment;
use crate::{
    measure::{
        analysts::{CALLS, ask, name},
        load::import_into,
    },
    report::{Report, count, short},
    sql::Analysis,
};

const NAMESPACE: &str = "bench-analysts";
/// Bound on `du` of the whole listing on Citus, in seconds.
const DU_S_MAX: f64 = 10.0;

/// Measures at the coordinator and at the plain database; answers whether the bound holds.
pub async fn run(
    plain: (&Deployment, &str),
    citus: (&Deployment, &str),
    mantle: &Path,
    listing: &Path,
    report: &mut Report,
) -> Result<bool> {
    report.heading("Analysts' queries");
    report.paragraph(&format!(
        "The listing in a namespace of its own, loaded by `mantle import` (Citus: through the coordinator); nothing else runs. \
         Seconds as the owner, median of {CALLS} calls; the ratio is to plain."
    ));
    for (which, (deployment, url)) in [("plain", plain), ("Citus", citus)] {
        let id = deployment.admin().allocate_ids(1).await?;
        deployment.admin().create_namespace(NAMESPACE, id).await?;
        let summary = import_into(mantle, NAMESPACE, listing, url, "").await?;
        report.block(&format!("{which}: {}", summary.lines().next().unwrap_or_default()));
        deployment.admin().vacuum().await?;
    }
    let (mut rows, mut du) = (Vec::new(), f64::NAN);
    for analysis in Analysis::ALL {
        let (expected, baseline) = ask(plain.0.admin(), analysis, NAMESPACE).await?;
        let (answered, seconds) = ask(citus.0.admin(), analysis, NAMESPACE).await?;
        ensure!(answered == expected, "{} answered {answered} rows on Citus, not {expected}", analysis.0);
        if analysis.0 == Analysis::ALL[0].0 {
            du = seconds;
        }
        rows.push([name(analysis), count(answered as u64), short(baseline), short(seconds), short(seconds / baseline)]);
        eprintln!("  {}", analysis.0);
    }
    report.table("statement | rows | plain, s | Citus, s | to plain", &rows);
    let held = du < DU_S_MAX;
    let bound = short(DU_S_MAX);
    let text = format!("`du` of the whole listing takes less than {bound} s on Citus: it takes {} s.", short(du));
    report.verdict(&text, held);
    Ok(held)
}
