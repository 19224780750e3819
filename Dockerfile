# One image for web and runtime; docker-compose.yml says which is which. By itself it runs all of the hall:
#   docker build -t guild-hall . && docker run -p 127.0.0.1:8000:8000 -p 127.0.0.1:8100:8100 -v guild-hall:/data guild-hall
# Debian's slim, not Alpine: google-re2 comes without wheels for musl.
FROM python:3.12-slim

WORKDIR /app
COPY requirements.txt requirements-oidc.txt ./
RUN pip install --no-cache-dir -r requirements.txt -r requirements-oidc.txt
# Members in other languages need theirs here, e.g.:
# RUN apt-get update && apt-get install -y --no-install-recommends nodejs npm && rm -rf /var/lib/apt/lists/*

# A first volume at /data takes this folder's owner. 1000 is the first user of most Linux machines, so that members may
# write into their folders when those are mounted.
RUN useradd --uid 1000 --create-home guildhall && install --directory --owner=1000 --group=1000 --mode=700 /data
COPY manage.py .
COPY guildhall guildhall
COPY mcp_runtime mcp_runtime
COPY roster roster
COPY --chown=1000:1000 guild-members guild-members
# Its user may not write here, and each start would compile all of it again.
RUN python -m compileall -q guildhall mcp_runtime roster && python -m guildhall.entry_point /usr/local/bin/guildhall

ENV PYTHONUNBUFFERED=1 GUILD_HALL_HOST=0.0.0.0 GUILD_HALL_DATA_DIR=/data
USER 1000:1000
EXPOSE 8000 8100
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/healthz', timeout=4)"]
# The exec form: `up`, or the runtime's guard, is process 1, hears the stop, and reaps.
CMD ["python", "manage.py", "up"]
