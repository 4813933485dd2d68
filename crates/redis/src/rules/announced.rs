//! A rule as the store has it, and the question of which rules bind whom. No I/O.
//!
//! Each rule has its own key for a caller. Of all rules that are announced, the earliest one's key
//! counts everything: its nodes charge it, and so do all nodes whose rule came later. Once a rule
//! is gone, the next one's key has counted everything from then on. So a node may stop to charge
//! the former key as soon as its own has counted everything for as long as it remembers.

/// A node's announcement holds for this long, in milliseconds. It is renewed more often. A rule
/// whose announcements have all lapsed comes later than the others when it is announced again.
pub const HOLDS: u64 = 5_000;
/// A rule without an announcement for this long is gone. The last node that had it has stopped to
/// decide by then, and every node has asked again.
pub const GONE: u64 = 2 * HOLDS;

/// A rule of a limit, in milliseconds of the store's clock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Announced {
    pub rule: String,
    /// When the announcements began, the last time that there were any; another time for each rule.
    pub first: u64,
    pub last: u64,
    /// The latest announcement before the rule was gone; 0 if it never was.
    pub left: u64,
    /// The node that announced it last.
    pub node: String,
}

impl Announced {
    /// A line of the reply to an announcement.
    pub fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split('\t');
        let rule = fields.next()?.to_owned();
        let mut number = || fields.next()?.parse().ok();
        let (first, last, left) = (number()?, number()?, number()?);
        Some(Self {
            rule,
            first,
            last,
            left,
            node: fields.next()?.to_owned(),
        })
    }

    /// Until when a node with the rule `own`, whose key remembers for `span`, must charge this
    /// rule's key, too.
    pub fn binds_until(&self, own: &Self, span: u64) -> u64 {
        let last = if self.first < own.first {
            self.last
        } else {
            self.left
        };
        if last == 0 {
            0
        } else {
            last.saturating_add(GONE).saturating_add(span)
        }
    }

    /// Whether nodes have this rule now.
    pub fn is_alive(&self, now: u64) -> bool {
        now <= self.last.saturating_add(GONE)
    }
}
