#!/bin/bash
# What an executor's pod runs. Spark's Kubernetes backend gives it one argument, `executor`, and all else in variables.
# Any other command is run as it stands. tini, as the first process of the pod, reaps what trainers leave.
set -euo pipefail

if [ "${1-}" != executor ]; then
    exec tini -s -- "$@"
fi

# One option each, which may contain spaces, numbered from 0.
options=()
for ((number = 0; ; number++)); do
    name=SPARK_JAVA_OPT_$number
    [ -v "$name" ] || break
    options+=("${!name}")
done

# Settings come first, then what the session adds, then Spark.
classes="${SPARK_CONF_DIR:-$SPARK_HOME/conf}"
for more in "${HADOOP_CONF_DIR-}" "${SPARK_CLASSPATH-}" "$SPARK_HOME/jars/*" "${SPARK_EXTRA_CLASSPATH-}"; do
    classes+="${more:+:$more}"
done

exec tini -s -- java "${options[@]}" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" -cp "$classes" \
    org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
    --driver-url "$SPARK_DRIVER_URL" \
    --executor-id "$SPARK_EXECUTOR_ID" \
    --cores "$SPARK_EXECUTOR_CORES" \
    --app-id "$SPARK_APPLICATION_ID" \
    --hostname "$SPARK_EXECUTOR_POD_IP" \
    --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
    --podName "$SPARK_EXECUTOR_POD_NAME"
