//! One tenant's weight, guarantee and ceiling.

use core::fmt;

/// The highest weight.
const MOST: u32 = 1_000;

/// One tenant's weight, guarantee and ceiling.
///
/// ```
/// use tidegate_core::fair::{Terms, TermsError};
/// let acme = Terms::new().with_weight(10)?.with_guarantee(0.2)?.with_ceiling(0.6)?;
/// assert_eq!((acme.weight(), acme.guarantee(), acme.ceiling()), (10.0, Some(0.2), Some(0.6)));
/// assert_eq!(Terms::new().with_weight(0), Err(TermsError::Weight));
/// assert_eq!(acme.with_weight_text("weight=3"), Some(acme.with_weight(3)?));
/// assert_eq!(acme.with_weight_text("weight=+3"), None);
/// # Ok::<(), TermsError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Terms {
    weight: u32,
    guarantee: f64,
    ceiling: f64,
}

/// Why terms are not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TermsError {
    /// The weight is 0 or above 1,000.
    #[error("a weight must be a whole number from 1 to {MOST}")]
    Weight,
    /// The guarantee is not a part of the limit.
    #[error("a guarantee must be from 0 % to 100 % of the limit")]
    Guarantee,
    /// The ceiling is not a part of the limit.
    #[error("a ceiling must be above 0 % and at most 100 % of the limit")]
    Ceiling,
    /// The guarantee is above the ceiling.
    #[error("the guarantee is above the ceiling; lower the guarantee or raise the ceiling")]
    GuaranteeAboveCeiling,
}

impl Terms {
    /// A weight of 1, no guarantee, no ceiling.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            weight: 1,
            guarantee: 0.0,
            ceiling: 1.0,
        }
    }

    /// The same terms with a weight, a whole number from 1 to 1,000: under contention a tenant with
    /// a weight of 2 gets twice as much as one with a weight of 1.
    ///
    /// # Errors
    /// [`TermsError::Weight`].
    pub const fn with_weight(self, weight: u32) -> Result<Self, TermsError> {
        if weight == 0 || weight > MOST {
            return Err(TermsError::Weight);
        }
        Ok(Self { weight, ..self })
    }

    /// The same terms with the weight of a text: `weight=10`. `None` if it is no such text, or no
    /// weight.
    #[must_use]
    pub fn with_weight_text(self, text: &str) -> Option<Self> {
        let digits = text.strip_prefix("weight=")?;
        let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
        let weight = digits.parse().ok().filter(|_| is_number)?;
        self.with_weight(weight).ok()
    }

    /// The same terms with a guarantee, as a part of the limit from 0 to 1.
    ///
    /// # Errors
    /// [`TermsError::Guarantee`], or [`TermsError::GuaranteeAboveCeiling`].
    pub fn with_guarantee(self, guarantee: f64) -> Result<Self, TermsError> {
        if !(0.0..=1.0).contains(&guarantee) {
            return Err(TermsError::Guarantee);
        }
        Self { guarantee, ..self }.checked()
    }

    /// The same terms with a ceiling, the most that the tenant may use, as a part of the limit
    /// above 0 and up to 1.
    ///
    /// # Errors
    /// [`TermsError::Ceiling`], or [`TermsError::GuaranteeAboveCeiling`].
    pub fn with_ceiling(self, ceiling: f64) -> Result<Self, TermsError> {
        if !(ceiling > 0.0 && ceiling <= 1.0) {
            return Err(TermsError::Ceiling);
        }
        Self { ceiling, ..self }.checked()
    }

    fn checked(self) -> Result<Self, TermsError> {
        if self.guarantee > self.ceiling {
            return Err(TermsError::GuaranteeAboveCeiling);
        }
        Ok(self)
    }

    /// The weight.
    #[must_use]
    pub fn weight(&self) -> f64 {
        self.weight.into()
    }

    /// The guarantee, if there is one.
    #[must_use]
    pub fn guarantee(&self) -> Option<f64> {
        (self.guarantee > 0.0).then_some(self.guarantee)
    }

    /// The ceiling, if it is below the limit.
    #[must_use]
    pub fn ceiling(&self) -> Option<f64> {
        (self.ceiling < 1.0).then_some(self.ceiling)
    }
}

impl Default for Terms {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Display for Terms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "weight {}", self.weight)?;
        if let Some(part) = self.guarantee() {
            write!(f, ", guarantee {} %", part * 100.0)?;
        }
        if let Some(part) = self.ceiling() {
            write!(f, ", ceiling {} %", part * 100.0)?;
        }
        Ok(())
    }
}
