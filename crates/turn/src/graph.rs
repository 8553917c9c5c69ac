//! The dependency graph of a plan, as indexes into its calls.
//!
//! Nothing here recurses: a chain of ten thousand calls is a legal plan and must not exhaust the stack.
#![expect(
    clippy::indexing_slicing,
    reason = "every index was checked against the plan before it became an edge"
)]

/// The edges of a plan, in both directions.
#[derive(Clone, Debug)]
pub(super) struct DependencyGraph {
    dependencies: Vec<Vec<usize>>,
    dependants: Vec<Vec<usize>>,
}

impl DependencyGraph {
    /// Creates the graph from the dependencies of each call. Every index must be below the number of calls.
    pub(super) fn new(dependencies: Vec<Vec<usize>>) -> Self {
        let mut dependants = vec![Vec::new(); dependencies.len()];
        for (call, needed) in dependencies.iter().enumerate() {
            for &dependency in needed {
                dependants[dependency].push(call);
            }
        }
        Self { dependencies, dependants }
    }

    /// Returns the calls that depend on this one, in the order of the plan.
    pub(super) fn dependants(&self, call: usize) -> &[usize] {
        &self.dependants[call]
    }

    /// Returns one cycle of each strongly connected component, in the order of their first calls.
    pub(super) fn cycles(&self) -> Vec<Vec<usize>> {
        let component = self.components();
        let mut size = vec![0_usize; component.len()];
        for &name in &component {
            size[name] += 1;
        }
        let mut reported = vec![false; component.len()];
        let mut cycles = Vec::new();
        for call in 0..component.len() {
            let name = component[call];
            if size[name] > 1 && !reported[name] {
                reported[name] = true;
                cycles.push(self.cycle_from(call, &component));
            }
        }
        cycles
    }

    /// Returns a cycle within the component of `start`. Following the first dependency within the component must reach
    /// a visited call, because every call of a component depends on another one of it.
    fn cycle_from(&self, start: usize, component: &[usize]) -> Vec<usize> {
        let mut path = Vec::new();
        let mut position = vec![None; component.len()];
        let mut at = start;
        loop {
            if let Some(first) = position[at] {
                return path.split_off(first);
            }
            position[at] = Some(path.len());
            path.push(at);
            let next =
                self.dependencies[at].iter().find(|&&next| next != at && component[next] == component[start]);
            match next {
                Some(&next) => at = next,
                None => return path,
            }
        }
    }

    /// Returns the strongly connected component of each call, named by one of its calls. This is Tarjan's algorithm
    /// with an explicit stack.
    fn components(&self) -> Vec<usize> {
        const NEW: usize = usize::MAX;
        let count = self.dependencies.len();
        let (mut order, mut low) = (vec![NEW; count], vec![NEW; count]);
        let mut component = vec![NEW; count];
        let mut open = Vec::new();
        let mut next_order = 0;
        for root in 0..count {
            if order[root] != NEW {
                continue;
            }
            // A call and the number of its dependencies that were followed.
            let mut work = vec![(root, 0)];
            while let Some((call, followed)) = work.pop() {
                if followed == 0 {
                    order[call] = next_order;
                    low[call] = next_order;
                    next_order += 1;
                    open.push(call);
                }
                if let Some(&dependency) = self.dependencies[call].get(followed) {
                    work.push((call, followed + 1));
                    if order[dependency] == NEW {
                        work.push((dependency, 0));
                    } else if component[dependency] == NEW {
                        low[call] = low[call].min(order[dependency]);
                    }
                    continue;
                }
                if low[call] == order[call] {
                    while let Some(member) = open.pop() {
                        component[member] = call;
                        if member == call {
                            break;
                        }
                    }
                }
                if let Some(&(parent, _)) = work.last() {
                    low[parent] = low[parent].min(low[call]);
                }
            }
        }
        component
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_knot_is_named_once_and_only_calls_that_wait_for_each_other_are_in_it() {
        for (dependencies, cycles) in [
            (vec![vec![], vec![0], vec![0, 1]], vec![]),
            (vec![vec![1], vec![0]], vec![vec![0, 1]]),
            // A tail that leads into a cycle is not part of it.
            (vec![vec![1], vec![2], vec![3], vec![1]], vec![vec![1, 2, 3]]),
            // Two components, the first depending on the second.
            (vec![vec![1, 2], vec![0], vec![3], vec![2]], vec![vec![0, 1], vec![2, 3]]),
            // A self reference is reported elsewhere.
            (vec![vec![0]], vec![]),
            // Two cycles through one call are one component.
            (vec![vec![1, 2], vec![0], vec![0]], vec![vec![0, 1]]),
        ] {
            assert_eq!(DependencyGraph::new(dependencies.clone()).cycles(), cycles, "{dependencies:?}");
        }
    }

    #[test]
    fn a_ring_of_a_hundred_thousand_costs_no_stack() {
        let count = 100_000;
        let ring = (0..count).map(|call| vec![(call + 1) % count]).collect();
        assert_eq!(DependencyGraph::new(ring).cycles(), [(0..count).collect::<Vec<_>>()]);
    }
}
