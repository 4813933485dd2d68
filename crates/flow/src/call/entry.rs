//! The options of an entry.

use crate::{
    call::resource::Resource,
    rules::arg::{Arg, ToArg},
};

/// The options of an entry to a resource. By default: one outbound unit without an origin.
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
#[must_use = "an entry does nothing until it enters"]
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

    /// Requests `units`, all or none. Statistics count units, and a response time counts once per
    /// unit. An entry of 0 units is a query: the gate checks the rules but counts and consumes
    /// nothing. A breaker that would admit a probe neither changes its state nor uses up a probe
    /// permit.
    #[inline]
    pub const fn count(mut self, units: u32) -> Self {
        self.units = units;
        self
    }

    /// Marks the call as inbound: system rules apply to it, and it counts in
    /// [`Gate::inbound`](crate::Gate::inbound).
    #[inline]
    pub const fn inbound(mut self) -> Self {
        self.inbound = true;
        self
    }

    /// Gives the call priority. If a rejecting flow rule has no room for it in the current window,
    /// the call borrows units from one of the next slots and waits until that slot begins (see
    /// [`Guard::delay`](crate::Guard::delay)). Other calls then find less room in that slot. The
    /// call is blocked if it would have to wait for
    /// [`GateBuilder::max_priority_wait`](crate::GateBuilder::max_priority_wait) or longer. No
    /// threshold is exceeded.
    ///
    /// A call cannot borrow from rules whose interval does not fit the gate's own window (one
    /// second by default), nor from rules that warm up, throttle, or measure another resource.
    #[inline]
    pub const fn prioritized(mut self) -> Self {
        self.prioritized = true;
        self
    }

    /// Sets the caller's name. An empty name means no origin.
    #[inline]
    pub const fn origin(mut self, origin: &'a str) -> Self {
        self.origin = if origin.is_empty() {
            None
        } else {
            Some(origin)
        };
        self
    }

    /// Sets the context: the name of the work that this call is part of.
    #[inline]
    pub const fn context(mut self, context: &'a str) -> Self {
        self.context = Some(context);
        self
    }

    /// Appends an argument of the call.
    pub fn arg(mut self, arg: impl Into<Arg<'a>>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Same as [`arg`](Self::arg), but by reference and for every argument type.
    /// `#[guard(args(…))]` calls it.
    pub fn arg_of(self, arg: &'a (impl ToArg + ?Sized)) -> Self {
        self.arg(arg.to_arg())
    }

    /// Attaches an argument by name.
    pub fn attach(mut self, name: &'a str, arg: impl Into<Arg<'a>>) -> Self {
        self.named.push((name, arg.into()));
        self
    }
}
