//! The rules. Each kind has its own file, which also contains its state at run time.

pub(crate) mod adaptive;
pub(crate) mod arg;
pub(crate) mod authority;
pub(crate) mod blocked;
pub(crate) mod breaker;
pub(crate) mod flow;
pub(crate) mod hot_param;
/// The method of every rule that sets its id.
macro_rules! id_setter {
    () => {
        /// Sets the rule's id, which a [`Blocked`](crate::Blocked) reports.
        #[must_use]
        pub fn id(self, id: impl Into<String>) -> Self {
            Self {
                id: Some(id.into()),
                ..self
            }
        }
    };
}
pub(crate) use id_setter;

mod invalid;
pub(crate) mod isolation;
mod loaded;
mod set;
pub(crate) mod system;
mod target;
mod threshold;
pub(crate) mod throttle;
pub(crate) mod warm_up;

pub use adaptive::{
    AdaptiveAlgorithm, AdaptiveRule, Aimd, CallWindow, ConcurrencyLimit, Gradient2, Pace, Vegas,
};
pub use authority::AuthorityRule;
pub use breaker::{BreakerRule, BreakerState, StateChange, Trip};
pub use flow::{Behaviour, FlowRule, Measure, Origins, Relation};
pub use hot_param::{HotParamRule, ParamKey, ParamMeasure};
pub use invalid::InvalidRule;
pub use isolation::IsolationRule;
pub(crate) use loaded::LoadedRules;
pub(crate) use set::RuleSet;
pub use set::{LoadError, RuleError, Rules};
pub use system::SystemRule;
pub use target::Target;
pub use threshold::{MemoryThreshold, Threshold};
