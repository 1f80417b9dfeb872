//! Reading one table of a profile: every key known, every value of the type it should have.

use toml::{Table, Value};

use super::curve::Curve;
use super::error::Fault;
use super::provenance::Quantity;
use crate::did_you_mean;
use crate::units::{Bytes, BytesPerSecond, Seconds};

/// No machine's rates are less a second, no tier has fewer bytes, and nothing that a profile has a time of takes longer (seconds): they
/// were meant in another unit.
const RATE_LEAST: f64 = 1e5;
const CAPACITY_LEAST: f64 = 1e3;
const TIME_MOST: f64 = 1.0;
const IN_ONES: &str = "write it in units of one: 24 GB is 24e9, 7 GB/s is 7e9, 2 TFLOP/s is 2e12";

/// Whether a key says how much memory there is, or may be page-locked.
fn is_of_memory(key: &str) -> bool {
    key.ends_with("_capacity_bytes") || key == "page_lockable_bytes"
}

/// A table, the keys it may have, and the path that leads to it.
pub(super) struct Reader<'a> {
    table: &'a Table,
    path: String,
    known: &'static [&'static str],
}

impl<'a> Reader<'a> {
    /// Refuses a key that is not among `known`, with the nearest that is.
    pub fn new(
        table: &'a Table,
        path: impl Into<String>,
        known: &'static [&'static str],
    ) -> Result<Reader<'a>, Fault> {
        let path = path.into();
        let reader = Reader { table, path, known };
        match table.keys().find(|key| !known.contains(&key.as_str())) {
            None => Ok(reader),
            Some(key) => {
                let remedy = did_you_mean(key, known.iter().copied())
                    .unwrap_or_else(|| format!("the keys here are: {}", known.join(", ")));
                Err(Fault::new(
                    reader.key(key),
                    format!("unknown key `{key}`"),
                    remedy,
                ))
            }
        }
    }

    fn key(&self, key: &str) -> String {
        if self.path.is_empty() {
            key.to_owned()
        } else {
            format!("{}.{key}", self.path)
        }
    }

    fn get(&self, key: &'static str) -> Option<&'a Value> {
        debug_assert!(self.known.contains(&key), "{key} is read but not known");
        self.table.get(key)
    }

    fn need(&self, key: &'static str, remedy: &str) -> Result<&'a Value, Fault> {
        self.get(key)
            .ok_or_else(|| Fault::new(self.key(key), "is missing", remedy))
    }

    fn wrong(&self, key: &str, value: &Value, remedy: &str) -> Fault {
        let problem = format!("has the wrong type, {}", value.type_str());
        Fault::new(self.key(key), problem, remedy)
    }

    /// A text that must be there.
    pub fn text(&self, key: &'static str) -> Result<&'a str, Fault> {
        let remedy = format!("write {key} = \"...\"");
        let value = self.need(key, &remedy)?;
        value
            .as_str()
            .ok_or_else(|| self.wrong(key, value, &remedy))
    }

    /// A text, or nothing.
    pub fn text_or_empty(&self, key: &'static str) -> Result<&'a str, Fault> {
        match self.get(key) {
            None => Ok(""),
            Some(_) => self.text(key),
        }
    }

    /// One of some words.
    pub fn word<T: Copy>(&self, key: &'static str, words: &[(&str, T)]) -> Result<T, Fault> {
        let names: Vec<&str> = words.iter().map(|(name, _)| *name).collect();
        let one = || format!("write {key} = \"...\" with one of: {}", names.join(", "));
        self.need(key, &one())?;
        let text = self.text(key)?;
        let found = words.iter().find(|(name, _)| *name == text);
        found.map(|(_, value)| *value).ok_or_else(|| {
            let remedy = format!("write one of: {}", names.join(", "));
            Fault::new(self.key(key), format!("`{text}` is not known here"), remedy)
        })
    }

    /// The same, or nothing.
    pub fn word_if_any<T: Copy>(
        &self,
        key: &'static str,
        words: &[(&str, T)],
    ) -> Result<Option<T>, Fault> {
        match self.get(key) {
            None => Ok(None),
            Some(_) => self.word(key, words).map(Some),
        }
    }

    /// A switch; off where it is not stated.
    pub fn flag(&self, key: &'static str) -> Result<bool, Fault> {
        match self.get(key) {
            None => Ok(false),
            Some(Value::Boolean(value)) => Ok(*value),
            Some(other) => Err(self.wrong(key, other, "write true or false")),
        }
    }

    /// A whole number, or nothing.
    pub fn whole(&self, key: &'static str) -> Result<Option<u32>, Fault> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        value
            .as_integer()
            .and_then(|whole| u32::try_from(whole).ok())
            .map(Some)
            .ok_or_else(|| self.wrong(key, value, "write a whole number, 0 or more"))
    }

    /// A whole number that must be there.
    pub fn need_whole(&self, key: &'static str) -> Result<u32, Fault> {
        self.need(key, "write a whole number, 0 or more")?;
        let whole = self.whole(key)?;
        Ok(whole.expect("a key that is there has a value"))
    }

    /// The fault of an inflection point that its curves do not have.
    pub fn not_of_curves(&self, key: &str, follows: Option<u32>) -> Fault {
        let follows = follows.map_or("never".to_owned(), |m| format!("at {m}"));
        let problem = format!("is not where the curves cross, which is {follows}");
        Fault::new(self.key(key), problem, "leave it out, or measure again")
    }

    /// A table that may be absent.
    pub fn maybe(
        &self,
        key: &'static str,
        known: &'static [&'static str],
    ) -> Result<Option<Reader<'a>>, Fault> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Table(table)) => Reader::new(table, self.key(key), known).map(Some),
            Some(value) => {
                let remedy = format!("write a table with {}", known.join(", "));
                Err(self.wrong(key, value, &remedy))
            }
        }
    }

    /// A table that must be there.
    pub fn table(
        &self,
        key: &'static str,
        known: &'static [&'static str],
    ) -> Result<Reader<'a>, Fault> {
        let remedy = format!("write a table with {}", known.join(", "));
        self.need(key, &remedy)?;
        let table = self.maybe(key, known)?;
        Ok(table.expect("a key that is there has a value"))
    }

    /// Named tables of one shape, such as the sources.
    pub fn named(
        &self,
        key: &'static str,
        known: &'static [&'static str],
    ) -> Result<Vec<(&'a str, Reader<'a>)>, Fault> {
        let value = self.need(key, "declare each source under [sources.NAME], or take over another profile's with extends = \"NAME\"")?;
        let table = value
            .as_table()
            .ok_or_else(|| self.wrong(key, value, "write tables [sources.NAME]"))?;
        let mut named = Vec::new();
        for (name, value) in table {
            let path = format!("{}.{name}", self.key(key));
            let Some(table) = value.as_table() else {
                let problem = format!("has the wrong type, {}", value.type_str());
                let remedy = format!("write a table with {}", known.join(", "));
                return Err(Fault::new(path, problem, remedy));
            };
            named.push((name.as_str(), Reader::new(table, path, known)?));
        }
        Ok(named)
    }

    /// An array of tables of one shape; empty where the key is absent.
    pub fn tables(
        &self,
        key: &'static str,
        known: &'static [&'static str],
    ) -> Result<Vec<Reader<'a>>, Fault> {
        let Some(value) = self.get(key) else {
            return Ok(Vec::new());
        };
        let remedy = format!(
            "write an array of tables, each under [[{}]], of keys {}",
            self.key(key),
            known.join(", ")
        );
        let array = value
            .as_array()
            .ok_or_else(|| self.wrong(key, value, &remedy))?;
        let mut tables = Vec::new();
        for (index, element) in array.iter().enumerate() {
            let table = element
                .as_table()
                .ok_or_else(|| self.wrong(key, element, &remedy))?;
            let path = format!("{}[{index}]", self.key(key));
            tables.push(Reader::new(table, path, known)?);
        }
        Ok(tables)
    }

    /// A number that must be there.
    pub fn number(&self, key: &'static str) -> Result<f64, Fault> {
        let value = self.need(key, "write a number")?;
        number(value).ok_or_else(|| self.wrong(key, value, "write a number"))
    }

    fn spread(&self) -> Result<Option<f64>, Fault> {
        match self.get("spread") {
            None => Ok(None),
            Some(_) => self.number("spread").map(Some),
        }
    }

    /// A number with its source.
    pub fn quantity(&self, key: &'static str) -> Result<Quantity<f64>, Fault> {
        let remedy = "write { value = ..., source = \"...\" }";
        let value = self.need(key, remedy)?;
        if !value.is_table() {
            return Err(self.wrong(key, value, remedy));
        }
        let inner = self.table(key, &["value", "source", "spread"])?;
        Ok(Quantity {
            value: inner.number("value")?,
            source: inner.text("source")?.to_owned(),
            spread: inner.spread()?,
        })
    }

    /// A number with its source, or nothing.
    pub fn maybe_quantity(&self, key: &'static str) -> Result<Option<Quantity<f64>>, Fault> {
        self.get(key).map(|_| self.quantity(key)).transpose()
    }

    /// A time with its source.
    pub fn seconds(&self, key: &'static str) -> Result<Quantity<Seconds>, Fault> {
        let quantity = self.quantity(key)?;
        if quantity.value > TIME_MOST {
            let problem = format!("is {} s, longer than any of these takes", quantity.value);
            let remedy = "write it in seconds: 10 us is 10e-6, 2 ms is 2e-3";
            return Err(Fault::new(self.key(key), problem, remedy));
        }
        Ok(map(quantity, Seconds))
    }

    /// A time with its source, or nothing.
    pub fn maybe_seconds(&self, key: &'static str) -> Result<Option<Quantity<Seconds>>, Fault> {
        self.get(key).map(|_| self.seconds(key)).transpose()
    }

    /// A rate with its source.
    pub fn rate(&self, key: &'static str) -> Result<Quantity<BytesPerSecond>, Fault> {
        let quantity = self.quantity(key)?;
        self.check_unit(key, quantity.value)?;
        Ok(map(quantity, BytesPerSecond))
    }

    /// A rate with its source, or nothing.
    pub fn maybe_rate(&self, key: &'static str) -> Result<Option<Quantity<BytesPerSecond>>, Fault> {
        self.get(key).map(|_| self.rate(key)).transpose()
    }

    /// A count above 0 with its source.
    pub fn count(&self, key: &'static str) -> Result<Quantity<u32>, Fault> {
        let quantity = self.quantity(key)?;
        let value = quantity.value;
        let most = f64::from(u16::MAX);
        if value.fract() == 0.0 && (1.0..=most).contains(&value) {
            return Ok(map(quantity, |value| value as u32));
        }
        let remedy = "write a whole number, 1 or more";
        Err(Fault::new(
            self.key(key),
            format!("{value} is no count"),
            remedy,
        ))
    }

    /// A count above 0 with its source, or nothing.
    pub fn maybe_count(&self, key: &'static str) -> Result<Option<Quantity<u32>>, Fault> {
        self.get(key).map(|_| self.count(key)).transpose()
    }

    /// A count of bytes with its source, or nothing.
    pub fn maybe_bytes(&self, key: &'static str) -> Result<Option<Quantity<Bytes>>, Fault> {
        self.get(key).map(|_| self.bytes(key)).transpose()
    }

    /// A count of bytes with its source.
    pub fn bytes(&self, key: &'static str) -> Result<Quantity<Bytes>, Fault> {
        let quantity = self.quantity(key)?;
        let value = quantity.value;
        let (problem, remedy) = match value {
            v if v < 0.0 => ("is below 0", "write how many bytes there are"),
            // 2^63 is where TOML's integers end.
            v if v >= 9.2e18 => ("is more than any machine has", "write less than 9.2e18"),
            v if is_of_memory(key) && v > 0.0 && v < CAPACITY_LEAST => {
                ("bytes are less than any machine has", IN_ONES)
            }
            v if v.fract() == 0.0 => return Ok(map(quantity, |value| Bytes(value as u64))),
            _ => ("is not a count of bytes", "write a whole number"),
        };
        let problem = match value.abs() >= 1e15 {
            true => format!("{value:e} {problem}"),
            false => format!("{value} {problem}"),
        };
        Err(Fault::new(self.key(key), problem, remedy))
    }

    /// A curve with its source.
    pub fn curve(&self, key: &'static str) -> Result<Curve, Fault> {
        let remedy = "write { points = [[size, rate], ...], source = \"...\" }";
        let value = self.need(key, remedy)?;
        if !value.is_table() {
            return Err(self.wrong(key, value, remedy));
        }
        let inner = self.table(key, &["points", "source", "spread"])?;
        let points = inner.need("points", remedy)?;
        let points = pairs(points).ok_or_else(|| inner.wrong("points", points, remedy))?;
        let curve = Curve::new(points, inner.text("source")?, inner.spread()?);
        let curve = curve.map_err(|error| {
            Fault::new(
                inner.key("points"),
                error.to_string(),
                "write points with rising sizes, all numbers positive and finite",
            )
        })?;
        let rates = curve.points().iter().map(|(_, rate)| *rate);
        self.check_unit(key, rates.fold(0.0, f64::max))?;
        Ok(curve)
    }

    /// Rates are in units of one, and are easily written in GB/s.
    fn check_unit(&self, key: &'static str, highest: f64) -> Result<(), Fault> {
        if key.ends_with("_per_s") && highest > 0.0 && highest < RATE_LEAST {
            let problem = format!("is {highest} a second at most, less than any machine does");
            return Err(Fault::new(self.key(key), problem, IN_ONES));
        }
        Ok(())
    }

    /// A curve with its source, or nothing.
    pub fn maybe_curve(&self, key: &'static str) -> Result<Option<Curve>, Fault> {
        self.get(key).map(|_| self.curve(key)).transpose()
    }
}

fn map<T>(quantity: Quantity<f64>, unit: impl Fn(f64) -> T) -> Quantity<T> {
    Quantity {
        value: unit(quantity.value),
        source: quantity.source,
        spread: quantity.spread,
    }
}

/// A number, whole or not.
pub(super) fn number(value: &Value) -> Option<f64> {
    value
        .as_float()
        .or_else(|| value.as_integer().map(|whole| whole as f64))
}

fn pairs(value: &Value) -> Option<Vec<(f64, f64)>> {
    value
        .as_array()?
        .iter()
        .map(|pair| match pair.as_array()?.as_slice() {
            [size, rate] => Some((number(size)?, number(rate)?)),
            _ => None,
        })
        .collect()
}
