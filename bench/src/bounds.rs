//! The bounds of a bench: what each compares, what was found, and whether it holds.

use crate::report::{Report, short};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Limit {
    Least(f64),
    Most(f64),
}

/// A bound and what was found; no number if it was not measured in this run.
struct Bound {
    what: String,
    limit: Limit,
    found: f64,
}

impl Bound {
    fn is_held(&self) -> bool {
        match self.limit {
            Limit::Least(least) => self.found >= least,
            Limit::Most(most) => self.found <= most,
        }
    }

    fn row(&self) -> [String; 4] {
        let limit = match self.limit {
            Limit::Least(least) => format!("≥ {}", exact(least)),
            Limit::Most(most) => format!("≤ {}", exact(most)),
        };
        let verdict = match self.found.is_nan() {
            true => "not measured",
            false if self.is_held() => "held",
            false => "**not held**",
        };
        [self.what.clone(), limit, exact(self.found), verdict.to_owned()]
    }
}

fn exact(value: f64) -> String {
    if value > 0.0 && value < 0.01 { format!("{value:.4}") } else { short(value) }
}

/// The bounds of a page.
#[derive(Default)]
pub struct Bounds(Vec<Bound>);

impl Bounds {
    pub fn least(&mut self, what: impl Into<String>, least: f64, found: f64) {
        self.0.push(Bound { what: what.into(), limit: Limit::Least(least), found });
    }

    pub fn most(&mut self, what: impl Into<String>, most: f64, found: f64) {
        self.0.push(Bound { what: what.into(), limit: Limit::Most(most), found });
    }

    /// Adds a table of them; answers whether all that were measured hold.
    pub fn judge(&self, report: &mut Report) -> bool {
        report.table("what | bound | found | verdict", &self.0.iter().map(Bound::row).collect::<Vec<_>>());
        self.0.iter().all(|bound| bound.found.is_nan() || bound.is_held())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(limit: Limit, found: f64) -> String {
        Bound { what: "a bound".into(), limit, found }.row()[3].clone()
    }

    #[test]
    fn bounds_are_judged_if_they_were_measured() {
        assert_eq!(verdict(Limit::Least(2.0), 2.0), "held");
        assert_eq!(verdict(Limit::Least(2.0), 1.99), "**not held**");
        assert_eq!(verdict(Limit::Most(2.0), 2.0), "held");
        assert_eq!(verdict(Limit::Most(2.0), 2.01), "**not held**");
        assert_eq!(verdict(Limit::Most(2.0), f64::NAN), "not measured");
    }

    #[test]
    fn all_that_were_measured_have_to_hold() {
        let mut bounds = Bounds::default();
        bounds.least("one", 2.0, f64::NAN);
        bounds.most("two", 2.0, 1.0);
        assert!(bounds.judge(&mut Report::default()));
        bounds.least("three", 2.0, 1.0);
        assert!(!bounds.judge(&mut Report::default()));
    }
}
