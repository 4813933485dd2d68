//! The connections of each namespace.

use std::{collections::HashMap, sync::Arc};

use parking_lot::{Mutex, MutexGuard};
/// How many connections have said that they belong to each namespace. Only namespaces with
/// connections are kept.
#[derive(Debug, Default)]
pub(super) struct Namespaces(Mutex<HashMap<Arc<str>, usize>>);

/// That a connection belongs to a namespace, until this is dropped.
#[derive(Debug)]
pub(super) struct Member {
    namespaces: Arc<Namespaces>,
    pub namespace: Arc<str>,
}

impl Namespaces {
    pub fn connections(&self, namespace: &str) -> usize {
        self.lock().get(namespace).copied().unwrap_or(0)
    }

    pub fn join(self: &Arc<Self>, namespace: &str) -> Member {
        let namespace: Arc<str> = namespace.into();
        *self.lock().entry(Arc::clone(&namespace)).or_default() += 1;
        Member {
            namespaces: Arc::clone(self),
            namespace,
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Arc<str>, usize>> {
        // No step panics midway.
        self.0.lock()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let mut namespaces = self.namespaces.lock();
        if let Some(connections) = namespaces.get_mut(&self.namespace) {
            *connections -= 1;
            if *connections == 0 {
                namespaces.remove(&self.namespace);
            }
        }
    }
}
