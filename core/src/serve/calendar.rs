//! What happens with which iteration.

/// Requests by the iteration with which something happens to them: a ring, so that noting and finding cost the same
/// however many run. What is noted may be outdated; who asks looks whether it still holds.
#[derive(Debug)]
pub(super) struct Calendar {
    slots: Vec<Vec<(i64, u32)>>,
}

/// Iterations that a turn of the ring has; what is further ahead stays for another turn.
const TURN: usize = 4096;

impl Calendar {
    pub(super) fn new() -> Calendar {
        Calendar {
            slots: vec![Vec::new(); TURN],
        }
    }

    pub(super) fn note(&mut self, iteration: i64, id: u32) {
        self.slots[iteration as usize % TURN].push((iteration, id));
    }

    /// Takes out what was noted for an iteration, last noted last.
    pub(super) fn take(&mut self, iteration: i64, found: &mut Vec<u32>) {
        let slot = &mut self.slots[iteration as usize % TURN];
        slot.retain(|(at, id)| {
            if *at == iteration {
                found.push(*id);
            }
            *at > iteration
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_further_than_a_turn_waits_for_its_own() {
        let mut calendar = Calendar::new();
        let far = TURN as i64 + 3;
        calendar.note(far, 7);
        calendar.note(3, 1);
        calendar.note(3, 2);
        let mut found = Vec::new();
        for (iteration, expected) in [(2, vec![]), (3, vec![1, 2]), (far, vec![7]), (far, vec![])] {
            found.clear();
            calendar.take(iteration, &mut found);
            assert_eq!(found, expected, "{iteration}");
        }
    }
}
