//! Options of the connection to a server.

use std::fmt;
use std::time::Duration;

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo};
use steadfast_store::RecordCodec;

use crate::names::KeyPrefix;

/// Options of a store on a Redis or Valkey server.
#[derive(Clone, Debug)]
pub struct Options {
    /// The address.
    pub place: RedisAddress,
    /// The login.
    pub login: RedisLogin,
    /// The login for sentinels, if they need one.
    pub sentinel_login: RedisLogin,
    /// The number of the database. A Cluster has only 0.
    pub database: u32,
    /// The encryption of the connection.
    pub tls: RedisTls,
    /// The prefix of all keys. Two systems on one server need two prefixes.
    pub prefix: KeyPrefix,
    /// The timeout of a command. A claim that arrives later than this is void. A higher value makes a caller wait
    /// longer for a server that is gone.
    pub command_timeout: Duration,
    /// The timeout for connecting.
    pub connect_timeout: Duration,
    /// The confirmation by replicas that a write needs.
    pub confirm: WriteConfirmation,
    /// The encoding of records.
    pub codec: RecordCodec,
}

/// The address of a server or of several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RedisAddress {
    /// One server.
    Server(HostPort),
    /// The primary according to the sentinels.
    Sentinel {
        /// The name of the service.
        service: String,
        /// The sentinels.
        sentinels: Vec<HostPort>,
    },
    /// A Cluster, with some of its nodes.
    Cluster(Vec<HostPort>),
}

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort {
    /// The name or address.
    pub name: String,
    /// The port.
    pub port: u16,
}

/// A user and a password. Never shown in logs.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct RedisLogin {
    /// The user, or `None` for the default one.
    pub user: Option<String>,
    /// The password.
    pub password: Option<String>,
}

/// The encryption of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RedisTls {
    /// Not encrypted.
    Off,
    /// Encrypted. The certificate must be from an authority that this machine trusts.
    Trusted,
    /// Encrypted. The certificate must be from one of these authorities, in PEM.
    Authority(Vec<u8>),
}

/// The condition for a write to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteConfirmation {
    /// The primary has the write.
    Primary,
    /// This number of replicas have the write too. Costs their round trip for every write. Together with `appendfsync
    /// always`, no acknowledged write is lost in a failover.
    Replicas {
        /// The number of replicas.
        count: u32,
        /// The time limit for them. After it, the outcome of the write is unknown.
        within: Duration,
    },
}

/// The reason why a URL is invalid. Does not show the URL, which may contain a password.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidRedisUrl {
    /// The scheme is unknown.
    #[error(
        "the redis url must begin with one of redis://, rediss://, redis+sentinel://, redis+cluster:// (or rediss+…, \
         valkey…): write redis://host:6379"
    )]
    Scheme,
    /// The host is missing or invalid.
    #[error(
        "the redis url has no host: write redis://host:6379; several, with commas, only for sentinel and cluster"
    )]
    Host,
    /// The port is not a number.
    #[error("a port in the redis url is not a number up to 65535: write redis://host:6379")]
    Port,
    /// The database is not a number.
    #[error("the database in the redis url is not a number: write redis://host:6379/0")]
    Database,
    /// There are sentinels, but no service name.
    #[error("the redis url has no service name for the sentinels: write redis+sentinel://host:26379/name")]
    Service,
    /// A `%` in the user or the password is not followed by two hexadecimal digits.
    #[error(
        "the user or password in the redis url has a % that is not followed by two hexadecimal digits: write %25 for it"
    )]
    Escape,
    /// A Cluster has only database 0.
    #[error("a redis cluster has only database 0: leave the number out")]
    ClusterDatabase,
}

impl Options {
    /// Parses a URL. All other options have their defaults.
    ///
    /// - `redis://user:password@host:6379/0`, one server; `rediss://` with TLS
    /// - `redis+sentinel://user:password@host:26379,host:26379/service/0`; `rediss+sentinel://`
    /// - `redis+cluster://user:password@host:6379,host:6379`; `rediss+cluster://`
    ///
    /// `valkey` may replace `redis`. User and password are escaped as in every URL: `%40` is `@`.
    pub fn parse(url: &str) -> Result<Self, InvalidRedisUrl> {
        let (scheme, rest) = url.split_once("://").ok_or(InvalidRedisUrl::Scheme)?;
        let (base, form) = scheme.split_once('+').unwrap_or((scheme, ""));
        let tls = match base {
            "redis" | "valkey" => RedisTls::Off,
            "rediss" | "valkeys" => RedisTls::Trusted,
            _ => return Err(InvalidRedisUrl::Scheme),
        };
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) = match authority.rsplit_once('@') {
            Some((login, hosts)) => (RedisLogin::parse(login)?, hosts),
            None => (RedisLogin::default(), authority),
        };
        let path = path.trim_end_matches('/');
        let hosts =
            |port| hosts.split(',').map(|host| HostPort::parse(host, port)).collect::<Result<Vec<_>, _>>();
        let (place, database) = match form {
            "" => {
                let mut hosts = hosts(6379)?;
                let host = hosts.pop().filter(|_| hosts.is_empty()).ok_or(InvalidRedisUrl::Host)?;
                (RedisAddress::Server(host), path)
            }
            "sentinel" => {
                let (service, database) = path.split_once('/').unwrap_or((path, ""));
                if service.is_empty() {
                    return Err(InvalidRedisUrl::Service);
                }
                (RedisAddress::Sentinel { service: service.to_owned(), sentinels: hosts(26379)? }, database)
            }
            "cluster" => (RedisAddress::Cluster(hosts(6379)?), path),
            _ => return Err(InvalidRedisUrl::Scheme),
        };
        let database =
            if database.is_empty() { 0 } else { database.parse().map_err(|_| InvalidRedisUrl::Database)? };
        if matches!(place, RedisAddress::Cluster(_)) && database != 0 {
            return Err(InvalidRedisUrl::ClusterDatabase);
        }
        Ok(Self {
            place,
            login,
            sentinel_login: RedisLogin::default(),
            database,
            tls,
            prefix: KeyPrefix::default(),
            command_timeout: Duration::from_secs(1),
            connect_timeout: Duration::from_secs(2),
            confirm: WriteConfirmation::Primary,
            codec: RecordCodec::default(),
        })
    }

    /// Returns the connection data of a host for the client library.
    pub(crate) fn connection(&self, host: &HostPort) -> redis::RedisResult<ConnectionInfo> {
        let RedisLogin { user, password } = &self.login;
        let mut settings = RedisConnectionInfo::default()
            .set_db(i64::from(self.database))
            .set_lib_name("steadfast", env!("CARGO_PKG_VERSION"));
        if let Some(user) = user {
            settings = settings.set_username(user);
        }
        if let Some(password) = password {
            settings = settings.set_password(password);
        }
        Ok(self.address(host).into_connection_info()?.set_redis_settings(settings))
    }

    /// Returns the address of a host for the client library.
    pub(crate) fn address(&self, HostPort { name, port }: &HostPort) -> ConnectionAddr {
        match self.tls {
            RedisTls::Off => ConnectionAddr::Tcp(name.clone(), *port),
            RedisTls::Trusted | RedisTls::Authority(_) => {
                ConnectionAddr::TcpTls { host: name.clone(), port: *port, insecure: false, tls_params: None }
            }
        }
    }
}

impl RedisLogin {
    fn parse(text: &str) -> Result<Self, InvalidRedisUrl> {
        let (user, password) = match text.split_once(':') {
            Some((user, password)) => (user, Some(unescape(password)?)),
            None => (text, None),
        };
        let user = Some(unescape(user)?).filter(|user| !user.is_empty());
        Ok(Self { user, password })
    }
}

impl HostPort {
    fn parse(text: &str, usual: u16) -> Result<Self, InvalidRedisUrl> {
        // An IPv6 address is in brackets, because its colons would be mistaken for that of the port.
        let (name, port) = match text
            .strip_prefix('[')
            .map(|rest| rest.split_once(']').ok_or(InvalidRedisUrl::Host))
            .transpose()?
        {
            Some((address, port)) => (address, port.strip_prefix(':')),
            None => text.split_once(':').map_or((text, None), |(name, port)| (name, Some(port))),
        };
        let port = port.map_or(Ok(usual), |port| port.parse().map_err(|_| InvalidRedisUrl::Port))?;
        if name.is_empty() || name.contains(|c: char| c.is_whitespace() || matches!(c, '@' | '?' | '#')) {
            return Err(InvalidRedisUrl::Host);
        }
        Ok(Self { name: name.to_owned(), port })
    }
}

fn unescape(text: &str) -> Result<String, InvalidRedisUrl> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let mut digit = || {
                    rest.next().and_then(|byte| char::from(byte).to_digit(16)).ok_or(InvalidRedisUrl::Escape)
                };
                let (high, low) = (digit()?, digit()?);
                u8::try_from(high * 16 + low).map_err(|_| InvalidRedisUrl::Escape)?
            }
            plain => plain,
        });
    }
    String::from_utf8(bytes).map_err(|_| InvalidRedisUrl::Escape)
}

/// The address for messages, without user and password.
impl fmt::Display for RedisAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |hosts: &[HostPort]| hosts.iter().map(HostPort::to_string).collect::<Vec<_>>().join(",");
        match self {
            Self::Server(host) => host.fmt(f),
            Self::Sentinel { service, sentinels } => {
                write!(f, "{} (sentinels of {service})", list(sentinels))
            }
            Self::Cluster(nodes) => write!(f, "{} (cluster)", list(nodes)),
        }
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.name.contains(':') {
            write!(f, "[{}]:{}", self.name, self.port)
        } else {
            write!(f, "{}:{}", self.name, self.port)
        }
    }
}

impl fmt::Debug for RedisLogin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.password.is_some() { "Login(…)" } else { "Login" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str, port: u16) -> HostPort {
        HostPort { name: name.to_owned(), port }
    }

    #[test]
    fn addresses_have_a_host_and_a_login() {
        let login = |user: Option<&str>, password: Option<&str>| RedisLogin {
            user: user.map(str::to_owned),
            password: password.map(str::to_owned),
        };
        let sentinels =
            |sentinels: Vec<HostPort>| RedisAddress::Sentinel { service: "main".to_owned(), sentinels };
        for (url, place, credentials, database, tls) in [
            ("redis://h", RedisAddress::Server(host("h", 6379)), login(None, None), 0, RedisTls::Off),
            (
                "rediss://u:p%40%25@h:7/3",
                RedisAddress::Server(host("h", 7)),
                login(Some("u"), Some("p@%")),
                3,
                RedisTls::Trusted,
            ),
            (
                "valkey://:a:b@h/",
                RedisAddress::Server(host("h", 6379)),
                login(None, Some("a:b")),
                0,
                RedisTls::Off,
            ),
            ("redis://[::1]:7", RedisAddress::Server(host("::1", 7)), login(None, None), 0, RedisTls::Off),
            (
                "redis+sentinel://:p@a:1,b/main/2",
                sentinels(vec![host("a", 1), host("b", 26379)]),
                login(None, Some("p")),
                2,
                RedisTls::Off,
            ),
            (
                "rediss+cluster://a:1,b:2",
                RedisAddress::Cluster(vec![host("a", 1), host("b", 2)]),
                login(None, None),
                0,
                RedisTls::Trusted,
            ),
        ] {
            let options = Options::parse(url).unwrap();
            assert_eq!(
                (options.place, options.login, options.database, options.tls),
                (place, credentials, database, tls),
                "{url}"
            );
        }
    }

    #[test]
    fn an_invalid_address_is_refused_with_a_solution() {
        for (url, expected) in [
            ("localhost:6379", InvalidRedisUrl::Scheme),
            ("http://h", InvalidRedisUrl::Scheme),
            ("redis+moon://h", InvalidRedisUrl::Scheme),
            ("redis://", InvalidRedisUrl::Host),
            ("redis://a,b", InvalidRedisUrl::Host),
            ("redis://[::1", InvalidRedisUrl::Host),
            ("redis://h:x", InvalidRedisUrl::Port),
            ("redis://h:70000", InvalidRedisUrl::Port),
            ("redis://h/x", InvalidRedisUrl::Database),
            ("redis+sentinel://h", InvalidRedisUrl::Service),
            ("redis+cluster://h/1", InvalidRedisUrl::ClusterDatabase),
            ("redis://:%4@h", InvalidRedisUrl::Escape),
        ] {
            assert_eq!(Options::parse(url).err(), Some(expected), "{url}");
        }
    }

    #[test]
    fn a_password_is_never_shown() {
        let options = Options::parse("redis://someone:hunter2@h").unwrap();
        for shown in [format!("{options:?}"), options.place.to_string()] {
            assert!(!shown.contains("hunter2") && !shown.contains("someone"), "{shown}");
        }
    }
}
