//! The HTTP form of stored types.
//!
//! Stored formats keep their field names, some of them in snake_case. Over HTTP all fields are in camelCase.

/// Defines the HTTP form of a stored type: the same fields in camelCase, those in the second list omitted if they are
/// empty. Does not compile while the stored type has a field that is not listed.
macro_rules! view {
    (
        $(#[$about:meta])*
        $view:ident of $stored:ident
        { $($(#[$attr:meta])* $field:ident: $kind:ty,)* }
        { $($(#[$optional_attr:meta])* $optional:ident: $optional_kind:ty,)* }
    ) => {
        $(#[$about])*
        #[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
        #[serde(rename_all = "camelCase")]
        pub struct $view {
            $($(#[$attr])* pub $field: $kind,)*
            $(
                $(#[$optional_attr])*
                #[serde(default, skip_serializing_if = "Option::is_none")]
                pub $optional: Option<$optional_kind>,
            )*
        }

        impl From<$stored> for $view {
            fn from(stored: $stored) -> Self {
                let $stored { $($field,)* $($optional,)* } = stored;
                Self { $($field: $field.into(),)* $($optional,)* }
            }
        }
    };
}
pub(crate) use view;
