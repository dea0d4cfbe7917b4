//! Values that a thread sets for a scope: each ends with its guard, and guards may be dropped in any order.

/// The active scopes of a thread, oldest first; later ones override earlier ones. A guard stores the id of its scope.
#[derive(Debug)]
pub struct ScopeStack<T> {
    last_id: u64,
    scopes: Vec<(u64, T)>,
}

impl<T> ScopeStack<T> {
    /// No scopes.
    pub const fn new() -> ScopeStack<T> {
        ScopeStack { last_id: 0, scopes: Vec::new() }
    }

    /// Adds a scope and returns its id.
    pub fn push(&mut self, value: T) -> u64 {
        self.last_id += 1;
        self.scopes.push((self.last_id, value));
        self.last_id
    }

    /// Removes a scope, wherever it is.
    pub fn remove(&mut self, id: u64) {
        self.scopes.retain(|(other, _)| *other != id);
    }

    /// Removes all scopes.
    pub fn clear(&mut self) {
        self.scopes.clear();
    }

    /// All values, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.scopes.iter().map(|(_, value)| value)
    }

    /// The newest value.
    pub fn last(&self) -> Option<&T> {
        self.scopes.last().map(|(_, value)| value)
    }
}

impl<T> Default for ScopeStack<T> {
    fn default() -> ScopeStack<T> {
        ScopeStack::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_end_in_any_order() {
        let mut stack = ScopeStack::new();
        let (first, second) = (stack.push('a'), stack.push('b'));
        stack.remove(first);
        assert_eq!(stack.last(), Some(&'b'));
        let third = stack.push('c');
        stack.remove(second);
        assert!(stack.iter().eq(&['c']));
        stack.remove(third);
        assert_eq!(stack.last(), None);
    }
}
