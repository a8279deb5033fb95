"""`celery -A every_second beat`: workers.app, with a night that is due each second."""

from workers.app import app

app.conf.beat_schedule["nightly"]["schedule"] = 1.0
