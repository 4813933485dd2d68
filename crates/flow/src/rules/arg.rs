//! Arguments of an entry, which hot-parameter rules check.

use std::{borrow::Cow, fmt};

/// One argument of a call, as hot-parameter rules compare it.
///
/// Values of different types differ: `1`, `"1"` and `true` each have their own share.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Arg<'a> {
    /// A whole number.
    Int(i64),
    /// A floating-point number.
    Float(Float),
    /// A boolean.
    Bool(bool),
    /// A text.
    Text(Cow<'a, str>),
}

impl Arg<'_> {
    /// Returns the same argument with an owned text.
    #[must_use]
    pub fn into_owned(self) -> Arg<'static> {
        match self {
            Self::Int(value) => Arg::Int(value),
            Self::Float(value) => Arg::Float(value),
            Self::Bool(value) => Arg::Bool(value),
            Self::Text(text) => Arg::Text(Cow::Owned(text.into_owned())),
        }
    }
}

impl fmt::Display for Arg<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int(value) => value.fmt(f),
            Self::Float(value) => value.get().fmt(f),
            Self::Bool(value) => value.fmt(f),
            Self::Text(text) => text.fmt(f),
        }
    }
}

/// A floating-point number, as arguments compare it: −0 equals 0, and NaN equals itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Float(u64);

impl Float {
    /// Returns the number.
    #[must_use]
    pub const fn get(self) -> f64 {
        f64::from_bits(self.0)
    }
}

impl From<f64> for Float {
    fn from(value: f64) -> Self {
        // Adding 0 turns −0 into 0.
        Self(if value.is_nan() {
            f64::NAN.to_bits()
        } else {
            (value + 0.0).to_bits()
        })
    }
}

impl From<f64> for Arg<'_> {
    fn from(value: f64) -> Self {
        Self::Float(value.into())
    }
}

impl From<f32> for Arg<'_> {
    fn from(value: f32) -> Self {
        f64::from(value).into()
    }
}

/// A character becomes a text of one character.
impl From<char> for Arg<'_> {
    fn from(value: char) -> Self {
        value.to_string().into()
    }
}

/// A type that can be viewed as an argument. `#[guard(args(…))]` requires it of its expressions.
pub trait ToArg {
    /// Returns the argument.
    fn to_arg(&self) -> Arg<'_>;
}

impl<T: ToArg + ?Sized> ToArg for &T {
    fn to_arg(&self) -> Arg<'_> {
        (**self).to_arg()
    }
}

impl ToArg for str {
    fn to_arg(&self) -> Arg<'_> {
        self.into()
    }
}

impl ToArg for String {
    fn to_arg(&self) -> Arg<'_> {
        self.into()
    }
}

impl<'a> From<&'a str> for Arg<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(Cow::Borrowed(text))
    }
}

impl From<String> for Arg<'_> {
    fn from(text: String) -> Self {
        Self::Text(Cow::Owned(text))
    }
}

impl<'a> From<&'a String> for Arg<'a> {
    fn from(text: &'a String) -> Self {
        Self::Text(Cow::Borrowed(text))
    }
}

impl From<bool> for Arg<'_> {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

macro_rules! copied {
    ($type:ty) => {
        impl ToArg for $type {
            fn to_arg(&self) -> Arg<'_> {
                Arg::from(*self)
            }
        }
    };
}
copied!(bool);
copied!(u64);
copied!(f64);
copied!(f32);
copied!(char);

macro_rules! from_int {
    ($($int:ty),*) => {$(
        impl From<$int> for Arg<'_> {
            fn from(value: $int) -> Self {
                Self::Int(value.into())
            }
        }
        copied!($int);
    )*};
}
from_int!(i8, i16, i32, i64, u8, u16, u32);

/// A number outside the range of `i64` becomes a text of its digits.
impl From<u64> for Arg<'_> {
    fn from(value: u64) -> Self {
        i64::try_from(value).map_or_else(|_| Self::Text(Cow::Owned(value.to_string())), Self::Int)
    }
}
