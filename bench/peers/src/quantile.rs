//! Order statistics.

/// The value that a share `q` of `values` lies below, linear between neighbours. `None` of no
/// values.
pub fn quantile(values: &[f64], q: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let at = q.clamp(0.0, 1.0) * sorted.len().checked_sub(1)? as f64;
    let (below, above) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    Some(below + (above - below) * at.fract())
}

/// The middle one; between two, their mean.
pub fn median(values: &[f64]) -> Option<f64> {
    quantile(values, 0.5)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[7.0]), Some(7.0));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn the_ends_are_the_least_and_the_greatest() {
        let values = [5.0, 9.0, 1.0];
        assert_eq!(
            (quantile(&values, 0.0), quantile(&values, 1.0)),
            (Some(1.0), Some(9.0))
        );
        assert_eq!(quantile(&values, 0.25), Some(3.0));
    }
}
