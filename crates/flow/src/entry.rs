//! An entry with its options.

use crate::{
    admit,
    arg::{Arg, ToArg},
    blocked::Blocked,
    guard::{Guard, OwnedGuard, Pass},
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

    /// Who asks.
    #[inline]
    pub const fn origin(mut self, origin: &'a str) -> Self {
        self.origin = Some(origin);
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

    /// Enters. The guard leaves when it is dropped; the call may go ahead after [`Guard::delay`].
    ///
    /// # Errors
    /// When a rule blocks.
    #[inline]
    pub fn enter(self) -> Result<Guard<'a>, Blocked> {
        self.admit().map(|pass| Guard::new(self.resource, pass))
    }

    /// As [`enter`](Self::enter), with a guard that borrows nothing.
    ///
    /// # Errors
    /// When a rule blocks.
    pub fn enter_owned(self) -> Result<OwnedGuard, Blocked> {
        self.admit().map(|pass| OwnedGuard::new(self.resource.clone(), pass))
    }

    /// Enters, and is ready when the call may go ahead: a throttle's delay is slept out without blocking the thread, on
    /// the gate's timer, whatever the async runtime is.
    ///
    /// Dropping the future while it sleeps gives up the call: it is in flight no more, and a breaker's probe gives its
    /// place back. The throttle's place stays empty.
    ///
    /// # Errors
    /// When a rule blocks, at once.
    pub async fn enter_async(self) -> Result<OwnedGuard, Blocked> {
        let guard = self.enter_owned()?;
        let Some(sleep) = guard.sleep() else { return Ok(guard) };
        let waiting = Waiting(Some(guard));
        sleep.await;
        Ok(waiting.done())
    }

    #[inline]
    fn admit(&self) -> Result<Pass, Blocked> {
        let Self { origin: None, context: None, .. } = self else { return admit::admit(self) };
        if self.args.is_empty() && self.named.is_empty() {
            admit::admit_plain(self.resource, self.units, self.inbound)
        } else {
            admit::admit(self)
        }
    }
}

/// A guard whose call has not begun: dropped so, it is cancelled.
struct Waiting(Option<OwnedGuard>);

impl Waiting {
    fn done(mut self) -> OwnedGuard {
        self.0.take().unwrap_or_else(|| unreachable!("taken once, here"))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(guard) = self.0.take() {
            guard.cancel();
        }
    }
}
