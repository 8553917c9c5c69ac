//! The suite for all stores, on one server and on a Cluster.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use steadfast_store::suite::{LeaseModel, StoreFixture, TimeModel};
use steadfast_store_redis::RedisStore;
use steadfast_testkit::redis::{RedisCluster, RedisServer};

use crate::world::options;

async fn on_one_server() -> StoreFixture {
    let server = RedisServer::shared();
    fixture(&server.url(), Box::new(Arc::clone(&server))).await
}

async fn on_a_cluster() -> StoreFixture {
    let cluster = RedisCluster::shared();
    fixture(&cluster.url(), Box::new(Arc::clone(&cluster))).await
}

/// Two clients of the same data, with a unique prefix.
async fn fixture(url: &str, keep: Box<dyn Any + Send + Sync>) -> StoreFixture {
    let options = options(url);
    StoreFixture {
        store: Arc::new(RedisStore::connect(options.clone()).await.unwrap()),
        second: Some(Arc::new(RedisStore::connect(options).await.unwrap())),
        time: TimeModel::Real { moment: Duration::from_millis(50) },
        leases: LeaseModel::Time,
        most: None,
        histories: 6,
        keep,
    }
}

mod one_server {
    steadfast_store::store_suite!(super::on_one_server);
}

mod cluster {
    steadfast_store::store_suite!(super::on_a_cluster);
}
