//! `extends`: a child states only its differences.

use toml::{Table, Value};

use super::error::{Fault, ProfileError};
use super::reader::number;

/// A text and its ancestors, the child first.
pub(super) struct Layers(Vec<(String, Table)>);

impl Layers {
    /// Reads `text` and everything it extends, through `parent`.
    pub fn read(
        text: &str,
        origin: &str,
        parent: &dyn Fn(&str) -> Result<String, ProfileError>,
    ) -> Result<Layers, ProfileError> {
        let mut layers: Vec<(String, Table)> = vec![(origin.to_owned(), table(text, origin)?)];
        let mut chain: Vec<String> = Vec::new();
        loop {
            let (child, content) = &layers[layers.len() - 1];
            let name = match content.get("extends") {
                None => break,
                Some(Value::String(name)) => name.clone(),
                Some(_) => {
                    return Err(Fault::new(
                        "extends",
                        "is not a text",
                        "write the name of one profile",
                    )
                    .within(child));
                }
            };
            let text = parent(&name).map_err(|error| error.or_origin(child))?;
            let origin = match name.ends_with(".toml") {
                true => name.clone(),
                false => format!("{name}.toml"),
            };
            let content = table(&text, &origin)?;
            // A file may hide another of its name, and extend that.
            if chain.contains(&name) && layers.iter().any(|(_, known)| *known == content) {
                let problem = format!("`{name}` extends itself through {}", path(&chain, child));
                let remedy = "let one of them extend nothing";
                return Err(Fault::new("extends", problem, remedy).within(child));
            }
            layers.push((origin, content));
            chain.push(name);
        }
        let layers = Layers(layers);
        layers.check_sources()?;
        Ok(layers)
    }

    /// One table: tables merge key by key; a number with its source, an array and residuals are
    /// replaced whole. A child's name and description are its own, and residuals say whose they are.
    pub fn merged(&self) -> Table {
        let mut merged = Table::new();
        for (index, (_, layer)) in self.0.iter().enumerate().rev() {
            let mut layer = layer.clone();
            layer.remove("extends");
            if index > 0 {
                layer.remove("name");
                layer.remove("description");
            }
            merge(&mut merged, layer);
        }
        self.say_whose_residuals(&mut merged);
        self.forget_larger_hosts_locks(&mut merged);
        merged
    }

    /// What may be page-locked of an older layer's host says nothing of a younger one's that is no larger than that.
    fn forget_larger_hosts_locks(&self, merged: &mut Table) {
        let [lockable, host] = ["page_lockable_bytes", "host_capacity_bytes"];
        let youngest = |key: &str| self.youngest(&format!("tiers.{key}"));
        let is_older = youngest(lockable) > youngest(host);
        let Some(Value::Table(tiers)) = merged.get_mut("tiers").filter(|_| is_older) else {
            return;
        };
        let value = |key: &str| number(tiers.get(key)?.get("value")?);
        if value(lockable) >= value(host) {
            tiers.remove(lockable);
        }
    }

    /// Says of residuals that another profile has which one: what a child states otherwise, no run of its was compared with.
    fn say_whose_residuals(&self, merged: &mut Table) {
        let mut layers = self.0.iter();
        let whose = layers.position(|(_, layer)| layer.contains_key("residuals"));
        let whose = whose.filter(|place| *place > 0);
        let name = whose.and_then(|place| self.0[place].1.get("name"));
        if let (Some(name), Some(Value::Table(residuals))) = (name, merged.get_mut("residuals"))
            && !residuals.contains_key("of")
        {
            residuals.insert("of".to_owned(), name.clone());
        }
    }

    /// The file and the key that a fault is to be mended in: the youngest file that holds the key, and
    /// the child where none does or where a child inherits none. Of two keys, the one of a younger file.
    pub fn blame(&self, mut fault: Fault) -> ProfileError {
        let mut at = self.youngest(&fault.key);
        if let Some(other) = fault.or_key.take().filter(|key| self.youngest(key) < at) {
            at = self.youngest(&other);
            fault.key = other;
        }
        fault.within(&self.0[at].0)
    }

    fn youngest(&self, key: &str) -> usize {
        let steps: Vec<&str> = key.split(['.', '[']).collect();
        let own = key == "name" || key == "description";
        let mut layers = self.0.iter();
        let holder = layers.position(|(_, layer)| holds(layer, &steps));
        holder.filter(|_| !own).unwrap_or(0)
    }

    /// A child must not change what an inherited number says of its origin.
    fn check_sources(&self) -> Result<(), ProfileError> {
        for (index, (origin, layer)) in self.0.iter().enumerate() {
            for (name, source) in sources(layer) {
                let other = self.0[index + 1..].iter().find(|(_, older)| {
                    sources(older).any(|(theirs, content)| theirs == name && content != source)
                });
                if let Some((older, _)) = other {
                    return Err(Fault::new(
                        format!("sources.{name}"),
                        format!("says something else than in {older}, whose numbers name it too"),
                        "give it another name",
                    )
                    .within(origin));
                }
            }
        }
        Ok(())
    }
}

fn sources(layer: &Table) -> impl Iterator<Item = (&String, &Value)> {
    layer
        .get("sources")
        .and_then(Value::as_table)
        .into_iter()
        .flatten()
}

fn path(chain: &[String], child: &str) -> String {
    match chain.last() {
        Some(_) => chain.join(" -> "),
        None => child.to_owned(),
    }
}

fn table(text: &str, origin: &str) -> Result<Table, ProfileError> {
    text.parse::<Table>().map_err(|error| {
        let start = error.span().map_or(0, |span| span.start.min(text.len()));
        let line = 1 + text.as_bytes()[..start]
            .iter()
            .filter(|&&byte| byte == b'\n')
            .count();
        let message = error.message().replace('\n', ", ");
        Fault::new(
            format!("line {line}"),
            format!("is not TOML ({message})"),
            "mend the line",
        )
        .within(origin)
    })
}

fn is_leaf(table: &Table) -> bool {
    let own = ["value", "points"];
    // A count of runs makes residuals; a source may be called so, too.
    let residuals = table.get("runs").is_some_and(Value::is_integer);
    residuals || own.iter().any(|key| table.contains_key(*key))
}

/// Two ways to write the same: a younger layer's replaces the other.
const OF_ONE: [&str; 2] = ["weight_read", "weight_read_bytes_per_s"];

fn merge(into: &mut Table, from: Table) {
    for [one, other] in [OF_ONE, [OF_ONE[1], OF_ONE[0]]] {
        if from.contains_key(one) && !from.contains_key(other) {
            into.remove(other);
        }
    }
    for (key, value) in from {
        match (into.get_mut(&key), value) {
            (Some(Value::Table(old)), Value::Table(new)) if !is_leaf(&new) && !is_leaf(old) => {
                merge(old, new);
            }
            (_, value) => {
                into.insert(key, value);
            }
        }
    }
}

/// Whether a layer has the key, or the array or the number that the key lies in.
fn holds(layer: &Table, steps: &[&str]) -> bool {
    let mut at = layer;
    for step in steps {
        match at.get(*step) {
            None => return is_leaf(at),
            Some(Value::Table(next)) => at = next,
            Some(_) => return true,
        }
    }
    true
}
