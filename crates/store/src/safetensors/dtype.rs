//! Element types by their names in the format.

use std::fmt;

macro_rules! dtypes {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $size:literal;)*) => {
        /// Element type of a tensor.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[expect(missing_docs, reason = "the format's own names")]
        pub enum Dtype { $($variant),* }

        impl Dtype {
            /// Every type, in the order of the format's description.
            pub const ALL: &[Dtype] = &[$(Dtype::$variant),*];

            /// Name in a header.
            pub fn name(self) -> &'static str {
                match self { $(Dtype::$variant => $name),* }
            }

            /// The type of a name.
            pub fn from_name(name: &str) -> Option<Dtype> {
                match name { $($name => Some(Dtype::$variant),)* _ => None }
            }

            /// Bytes an element.
            pub fn size(self) -> u64 {
                match self { $(Dtype::$variant => $size),* }
            }
        }
    };
}

dtypes! {
    Bool = "BOOL", 1;
    U8 = "U8", 1;
    I8 = "I8", 1;
    F8E5M2 = "F8_E5M2", 1;
    F8E4M3 = "F8_E4M3", 1;
    F8E8M0 = "F8_E8M0", 1;
    I16 = "I16", 2;
    U16 = "U16", 2;
    F16 = "F16", 2;
    Bf16 = "BF16", 2;
    I32 = "I32", 4;
    U32 = "U32", 4;
    F32 = "F32", 4;
    F64 = "F64", 8;
    I64 = "I64", 8;
    U64 = "U64", 8;
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl serde::Serialize for Dtype {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(self.name())
    }
}

impl<'de> serde::Deserialize<'de> for Dtype {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let name = String::deserialize(d)?;
        Dtype::from_name(&name)
            .ok_or_else(|| serde::de::Error::custom(format!("unknown dtype {name:?}")))
    }
}
