//! The commands that a client's session has queued since `MULTI`.

/// The maximum number of queued commands of one connection.
const MOST: usize = 1_024;
/// The maximum number of bytes in them.
const MOST_BYTES: usize = 64 * 1024;

/// A command that was queued: its name and its arguments.
pub(super) type Queued = Vec<Box<[u8]>>;

/// The commands since `MULTI`.
#[derive(Debug, Default)]
pub(super) struct Transaction {
    commands: Vec<Queued>,
    bytes: usize,
    /// A command was refused, so `EXEC` runs none.
    is_void: bool,
}

impl Transaction {
    /// Queues a command. `false` if there are too many, or they are too long.
    #[must_use]
    pub fn push(&mut self, args: &[&[u8]]) -> bool {
        let bytes: usize = args.iter().map(|arg| arg.len()).sum();
        if self.is_void {
            return true;
        }
        if self.commands.len() == MOST || self.bytes + bytes > MOST_BYTES {
            return false;
        }
        self.bytes += bytes;
        self.commands
            .push(args.iter().map(|arg| Box::from(*arg)).collect());
        true
    }

    /// Lets `EXEC` run nothing.
    pub fn make_void(&mut self) {
        *self = Self {
            is_void: true,
            ..Self::default()
        };
    }

    /// The commands that `EXEC` runs; `None` if one was refused.
    pub fn into_commands(self) -> Option<Vec<Queued>> {
        (!self.is_void).then_some(self.commands)
    }
}
