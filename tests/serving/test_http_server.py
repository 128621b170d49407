import httpx
import openai

from tests.serving.served import served


def test_a_client_is_the_first_to_close_an_idle_connection():
    own = httpx.Limits().keepalive_expiry, openai.DEFAULT_CONNECTION_LIMITS.keepalive_expiry
    with served() as client:
        client.get("/health")
        (connection,) = client.server.server_state.connections
        while connection.timeout_keep_alive_task is None:  # set behind the answer
            pass
        seconds = connection.timeout_keep_alive_task.when() - connection.loop.time()
    assert seconds > 60 > max(own)  # 60: nginx's, and that of load balancers
