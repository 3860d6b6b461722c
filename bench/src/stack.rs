//! The stack that is measured, as the launcher describes it.

/// Addresses, credentials and processes.
#[derive(clap::Args)]
pub struct Stack {
    /// The gateway
    #[arg(long, env = "MANTLE_URL", value_name = "URL")]
    pub url: String,
    /// Its bearer token
    #[arg(long, env = "MANTLE_TOKEN", hide_env_values = true)]
    pub token: String,
    #[arg(long, env = "AWS_REGION")]
    pub region: String,
    #[arg(long, env = "AWS_ACCESS_KEY_ID")]
    pub access_key: String,
    #[arg(long, env = "AWS_SECRET_ACCESS_KEY", hide_env_values = true)]
    pub secret_key: String,
    /// Direct PostgreSQL URL of a role in mantle_gateway
    #[arg(long, env = "DATABASE_URL", value_name = "URL", hide_env_values = true)]
    pub database: String,
    /// The same of a superuser, who makes the textbook's tables, changes settings and counts statements
    #[arg(long, env = "MANTLE_ADMIN_URL", value_name = "URL", hide_env_values = true)]
    pub admin: String,
    /// Addresses of the index replicas, separated by commas
    #[arg(long, env = "MANTLE_INDEX", value_name = "ADDRESSES")]
    pub index: String,
    /// Its processes, for their processor time: `name=pid`, separated by commas
    #[arg(long, env = "MANTLE_PROCESSES", value_name = "LIST", value_delimiter = ',')]
    pub processes: Vec<String>,
}
