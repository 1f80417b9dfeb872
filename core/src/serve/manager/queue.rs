//! First come, first served.

use std::collections::VecDeque;

/// Requests that wait, in the order of their coming; who had to leave is before all others.
#[derive(Debug, Default)]
pub(super) struct Queue(VecDeque<u32>);

impl Queue {
    /// One has come.
    pub fn enqueue(&mut self, id: u32) {
        self.0.push_back(id);
    }

    /// One that had to leave waits again.
    pub fn put_back(&mut self, id: u32) {
        self.0.push_front(id);
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Who is next.
    pub fn first(&self) -> Option<u32> {
        self.0.front().copied()
    }

    /// Takes out who is next.
    pub fn pop(&mut self) -> Option<u32> {
        self.0.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_left_is_served_first() {
        let mut queue = Queue::default();
        queue.enqueue(4);
        queue.enqueue(5);
        queue.put_back(3);
        assert_eq!((queue.first(), queue.len()), (Some(3), 3));
        assert_eq!(
            [queue.pop(), queue.pop(), queue.pop(), queue.pop()],
            [Some(3), Some(4), Some(5), None]
        );
    }
}
