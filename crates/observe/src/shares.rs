//! Places that tenants share, so that none can take all of them.

use std::{borrow::Borrow, collections::HashMap, hash::Hash};

/// A bounded number of places. A tenant may take one while it holds fewer than are free: one tenant
/// has at most half of all, two have a third each, and there is always a free one for another.
///
/// The tenants are what the user of the places chooses: networks, limits, applications.
#[derive(Debug)]
pub struct Shares<T> {
    places: usize,
    /// The most that one tenant may hold, however many are free.
    most: usize,
    taken: usize,
    /// How many each tenant holds, without those that hold none.
    of_each: HashMap<T, usize>,
}

/// Whether a tenant with `own` places may take one more, if `taken` of all are taken: for users that
/// count the places themselves.
#[must_use]
pub const fn has_room(own: usize, taken: usize, places: usize) -> bool {
    own < places.saturating_sub(taken)
}

impl<T: Hash + Eq> Shares<T> {
    /// Creates free places.
    #[must_use]
    pub fn new(places: usize) -> Self {
        Self {
            places,
            most: usize::MAX,
            taken: 0,
            of_each: HashMap::new(),
        }
    }

    /// Lets a tenant hold `most`, also if fewer are free.
    #[must_use]
    pub fn with_most(most: usize) -> Self {
        Self {
            most,
            ..Self::new(usize::MAX)
        }
    }

    /// Takes a place if the tenant may have one more.
    #[must_use]
    pub fn enter(&mut self, tenant: T) -> bool {
        let own = self.of(&tenant);
        let may_enter = own < self.most && has_room(own, self.taken, self.places);
        if may_enter {
            *self.of_each.entry(tenant).or_default() += 1;
            self.taken += 1;
        }
        may_enter
    }

    /// Frees a place of the tenant. Without one, nothing happens.
    pub fn leave<Q: Hash + Eq + ?Sized>(&mut self, tenant: &Q)
    where
        T: Borrow<Q>,
    {
        let Some(own) = self.of_each.get_mut(tenant) else {
            return;
        };
        *own -= 1;
        self.taken -= 1;
        if *own == 0 {
            self.of_each.remove(tenant);
        }
    }

    /// How many places the tenant holds.
    pub fn of<Q: Hash + Eq + ?Sized>(&self, tenant: &Q) -> usize
    where
        T: Borrow<Q>,
    {
        self.of_each.get(tenant).copied().unwrap_or(0)
    }

    /// How many places are taken.
    #[must_use]
    pub const fn taken(&self) -> usize {
        self.taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(shares: &mut Shares<&'static str>, tenant: &'static str) -> usize {
        while shares.enter(tenant) {}
        shares.of(tenant)
    }

    #[test]
    fn a_tenant_has_at_most_as_many_places_as_are_free() {
        let mut shares = Shares::new(100);
        assert_eq!(fill(&mut shares, "a"), 50);
        assert_eq!(fill(&mut shares, "b"), 25);
        assert_eq!(fill(&mut shares, "c"), 13);
        // A place that a tenant leaves is free for all.
        (0..20).for_each(|_| shares.leave("a"));
        assert!(shares.enter("b"));
        assert_eq!(
            (shares.of("a"), shares.of("b"), shares.taken()),
            (30, 26, 69)
        );
        assert!(shares.enter("a"), "30 of 31 free ones");
        assert!(!shares.enter("a"), "31 of 30 free ones");
        assert!(shares.enter("d"));
    }

    #[test]
    fn tenants_that_came_together_have_equal_parts_and_one_place_is_left_for_another() {
        let mut shares = Shares::new(99);
        let tenants = ["a", "b"];
        for _ in 0..99 {
            for tenant in tenants {
                let _ = shares.enter(tenant);
            }
        }
        assert_eq!(tenants.map(|tenant| shares.of(tenant)), [33, 33]);
        for tenant in ["c", "d", "e", "f"] {
            assert!(fill(&mut shares, tenant) > 0, "{tenant}");
        }
    }

    #[test]
    fn tenants_without_places_take_no_memory_and_cannot_leave() {
        let mut shares = Shares::new(10);
        assert!(shares.enter("a"));
        shares.leave("a");
        shares.leave("a");
        shares.leave("b");
        assert_eq!((shares.taken(), shares.of_each.len()), (0, 0));
    }

    #[test]
    fn a_bound_of_each_tenant_is_exact_whatever_is_free() {
        let mut shares = Shares::with_most(2);
        for tenant in ["a", "b", "c"] {
            assert_eq!(fill(&mut shares, tenant), 2);
        }
    }
}
