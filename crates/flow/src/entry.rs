//! What an entry asks for.

use crate::{
    arg::{Arg, ToArg},
    resource::Resource,
};

/// What an entry asks for, beside the resource. By default: one unit, outbound, from nobody in particular.
///
/// ```
/// use tidegate_flow::Gate;
/// let gate = Gate::new();
/// let search = gate.resource("search");
/// let guard = search.entry().count(3).inbound().origin("mobile").arg("cats").enter()?;
/// assert_eq!(search.node().in_flight(), 3);
/// assert_eq!(search.origin("mobile").unwrap().in_flight(), 3);
/// # drop(guard);
/// # Ok::<(), tidegate_flow::Blocked>(())
/// ```
#[must_use = "an entry is nothing until it enters"]
#[derive(Clone, Debug)]
pub struct Entry<'a> {
    pub(crate) resource: &'a Resource,
    pub(crate) units: u32,
    pub(crate) inbound: bool,
    pub(crate) prioritized: bool,
    pub(crate) origin: Option<&'a str>,
    pub(crate) context: Option<&'a str>,
    pub(crate) args: Vec<Arg<'a>>,
    pub(crate) named: Vec<(&'a str, Arg<'a>)>,
}

impl<'a> Entry<'a> {
    #[inline]
    pub(crate) const fn new(resource: &'a Resource) -> Self {
        Self {
            resource,
            units: 1,
            inbound: false,
            prioritized: false,
            origin: None,
            context: None,
            args: Vec::new(),
            named: Vec::new(),
        }
    }

    pub(crate) const fn with(resource: &'a Resource, units: u32, inbound: bool) -> Self {
        let mut entry = Self::new(resource);
        entry.units = units;
        entry.inbound = inbound;
        entry
    }

    /// Asks for this many units at once: all of them or none. Statistics count units; a response time counts once for
    /// each. With 0 it is a question: rules are asked, but nothing is counted or taken, and a breaker that would let a
    /// probe through neither changes its state nor gives its place away.
    #[inline]
    pub const fn count(mut self, units: u32) -> Self {
        self.units = units;
        self
    }

    /// The call comes from outside: system rules are asked, and it counts in [`Gate::inbound`](crate::Gate::inbound).
    #[inline]
    pub const fn inbound(mut self) -> Self {
        self.inbound = true;
        self
    }

    /// The call matters more than others: where a flow rule that rejects has no room for it in the current window, it
    /// borrows from one of the next slots, and waits until that begins (see [`Guard::delay`](crate::Guard::delay)); other
    /// calls then find less room there. It is blocked where it would have to wait for as long as
    /// [`GateBuilder::max_priority_wait`](crate::GateBuilder::max_priority_wait), or longer. No threshold is passed.
    ///
    /// Rules whose interval is none of the gate's own window (a second, by default) lend nothing, and neither do rules that
    /// warm up, throttle, or measure another resource.
    #[inline]
    pub const fn prioritized(mut self) -> Self {
        self.prioritized = true;
        self
    }

    /// Who asks. An empty name is nobody's: the entry is then one without an origin.
    #[inline]
    pub const fn origin(mut self, origin: &'a str) -> Self {
        self.origin = if origin.is_empty() { None } else { Some(origin) };
        self
    }

    /// Within what: the name of the work that this call is part of.
    #[inline]
    pub const fn context(mut self, context: &'a str) -> Self {
        self.context = Some(context);
        self
    }

    /// The next argument of the call.
    pub fn arg(mut self, arg: impl Into<Arg<'a>>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// As [`arg`](Self::arg), by reference, whatever kind of argument it is: what `#[guard(args(…))]` calls.
    pub fn arg_of(self, arg: &'a (impl ToArg + ?Sized)) -> Self {
        self.arg(arg.to_arg())
    }

    /// An argument by name.
    pub fn attach(mut self, name: &'a str, arg: impl Into<Arg<'a>>) -> Self {
        self.named.push((name, arg.into()));
        self
    }
}
