//! The environment of a measurement in coarse buckets, so that a timing of a hot, throttled GPU is not confused with one of a cold
//! GPU. `nvml` and `discover` read the sensors.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

macro_rules! bucket {
    ($(#[$meta:meta])* $name:ident { $($(#[$variant_meta:meta])* $variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
        #[serde(rename_all = "lowercase")]
        pub enum $name {
            $($(#[$variant_meta])* $variant,)+
            /// Nothing could be read.
            #[default]
            Unknown,
        }

        impl $name {
            /// The lower-case name.
            pub const fn name(self) -> &'static str {
                match self { $($name::$variant => $text,)+ $name::Unknown => "unknown" }
            }

            /// Whether nothing could be read.
            pub const fn is_unknown(self) -> bool {
                matches!(self, $name::Unknown)
            }

            fn from_name(name: &str) -> Option<Self> {
                match name { $($text => Some($name::$variant),)+ "unknown" => Some($name::Unknown), _ => None }
            }
        }
    };
}

bucket! {
    /// Device temperature.
    Temperature {
        /// Below 50 °C.
        Cold = "cold",
        /// From 50 °C.
        Warm = "warm",
        /// From 80 °C.
        Hot = "hot",
    }
}

bucket! {
    /// Share of memory in use.
    MemoryPressure {
        /// Below 60 %.
        Low = "low",
        /// From 60 %.
        Medium = "medium",
        /// From 85 %.
        High = "high",
    }
}

bucket! {
    /// Clock throttling.
    PowerState {
        /// Clocks are not limited.
        Boost = "boost",
        /// Idle, or limited by an application clock or power cap.
        Nominal = "nominal",
        /// Throttled by heat or power supply.
        Throttled = "throttled",
    }
}

impl Temperature {
    /// The bucket of a temperature in degrees Celsius.
    pub const fn of_celsius(degrees: u32) -> Temperature {
        match degrees {
            0..50 => Temperature::Cold,
            50..80 => Temperature::Warm,
            _ => Temperature::Hot,
        }
    }
}

impl MemoryPressure {
    /// The bucket of `used` out of `total` bytes.
    pub fn of_bytes(used: u64, total: u64) -> MemoryPressure {
        if total == 0 {
            return MemoryPressure::Unknown;
        }
        let share = used as f64 / total as f64;
        if share < 0.60 {
            MemoryPressure::Low
        } else if share < 0.85 {
            MemoryPressure::Medium
        } else {
            MemoryPressure::High
        }
    }
}

impl PowerState {
    /// The bucket of NVML's clock-event reasons, a bit set.
    pub const fn of_clock_reasons(reasons: u64) -> PowerState {
        const HARDWARE_SLOWDOWN: u64 = 0x08;
        const SOFTWARE_THERMAL: u64 = 0x20;
        const HARDWARE_THERMAL: u64 = 0x40;
        const POWER_BRAKE: u64 = 0x80;
        if reasons & (HARDWARE_SLOWDOWN | SOFTWARE_THERMAL | HARDWARE_THERMAL | POWER_BRAKE) != 0 {
            PowerState::Throttled
        } else if reasons == 0 {
            PowerState::Boost
        } else {
            PowerState::Nominal
        }
    }
}

/// The environment of one device at one moment. The default is all unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Environment {
    /// Device temperature.
    pub temperature: Temperature,
    /// Share of its memory in use.
    pub memory_pressure: MemoryPressure,
    /// Clock throttling.
    pub power: PowerState,
}

impl fmt::Display for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.temperature.name(), self.memory_pressure.name(), self.power.name())
    }
}

/// A text that is not `temperature/memory/power`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownEnvironment {
    /// The text.
    pub text: String,
}

impl fmt::Display for UnknownEnvironment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "invalid environment `{}`; expected temperature/memory/power, such as `warm/low/boost`",
            self.text
        )
    }
}

impl std::error::Error for UnknownEnvironment {}

impl FromStr for Environment {
    type Err = UnknownEnvironment;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut parts = text.split('/');
        let parsed = (|| {
            let environment = Environment {
                temperature: Temperature::from_name(parts.next()?)?,
                memory_pressure: MemoryPressure::from_name(parts.next()?)?,
                power: PowerState::from_name(parts.next()?)?,
            };
            parts.next().is_none().then_some(environment)
        })();
        parsed.ok_or_else(|| UnknownEnvironment { text: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readings_map_to_buckets() {
        assert_eq!(Temperature::of_celsius(49), Temperature::Cold);
        assert_eq!(Temperature::of_celsius(50), Temperature::Warm);
        assert_eq!(Temperature::of_celsius(80), Temperature::Hot);
        assert_eq!(MemoryPressure::of_bytes(59, 100), MemoryPressure::Low);
        assert_eq!(MemoryPressure::of_bytes(60, 100), MemoryPressure::Medium);
        assert_eq!(MemoryPressure::of_bytes(85, 100), MemoryPressure::High);
        assert_eq!(MemoryPressure::of_bytes(1, 0), MemoryPressure::Unknown);
        assert_eq!(PowerState::of_clock_reasons(0), PowerState::Boost);
        assert_eq!(PowerState::of_clock_reasons(0x1 | 0x4), PowerState::Nominal);
        assert_eq!(PowerState::of_clock_reasons(0x1 | 0x40), PowerState::Throttled);
    }

    #[test]
    fn text_round_trips() {
        let environment = Environment {
            temperature: Temperature::Hot,
            power: PowerState::Nominal,
            ..Environment::default()
        };
        assert_eq!(environment.to_string(), "hot/unknown/nominal");
        assert_eq!("hot/unknown/nominal".parse(), Ok(environment));
        for wrong in ["", "hot", "hot/low", "hot/low/boost/x", "boost/low/hot"] {
            assert!(wrong.parse::<Environment>().is_err(), "{wrong}");
        }
    }
}
