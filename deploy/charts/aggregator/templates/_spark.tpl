{{/* Spark in client mode: the driver is the aggregator's pod, executors are pods that it starts. */}}
{{- define "aggregator.sparkProperties" -}}
{{- $spark := .root.Values.spark.kubernetes -}}
{{- $volume := "spark.kubernetes.executor.volumes.persistentVolumeClaim.checkpoint" -}}
spark.executor.instances: {{ $spark.executors | quote }}
spark.executor.cores: {{ $spark.cores | quote }}
spark.executor.memory: {{ $spark.memory | quote }}
spark.kubernetes.namespace: {{ .root.Release.Namespace }}
spark.kubernetes.container.image: {{ $spark.image }}
spark.kubernetes.container.image.pullPolicy: {{ .root.Values.global.image.pullPolicy }}
spark.kubernetes.authenticate.driver.serviceAccountName: {{ .name }}
spark.kubernetes.driver.pod.name: {{ .name }}-0
spark.kubernetes.executor.podTemplateFile: /etc/isotherm/config/executor.yaml
spark.driver.host: {{ .name }}-pods.{{ .root.Release.Namespace }}.svc
spark.driver.bindAddress: 0.0.0.0
spark.driver.port: "7078"
spark.blockManager.port: "7079"
{{ $volume }}.mount.path: /var/lib/isotherm
{{ $volume }}.options.claimName: {{ .claim }}
{{- end -}}

{{/* Executors write into the checkpoint, as the user that the driver has. */}}
{{- define "aggregator.executorTemplate" -}}
apiVersion: v1
kind: Pod
spec:
  automountServiceAccountToken: false
  securityContext: {{- include "isotherm.podSecurity" . | nindent 4 }}
  containers:
    - name: executor
      securityContext:
        allowPrivilegeEscalation: false
        capabilities:
          drop: [ALL]
{{- end -}}

{{/* The right to start executors, and nothing else. */}}
{{- define "aggregator.access" -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ .name }}
  labels: {{- include "isotherm.labels" . | nindent 4 }}
automountServiceAccountToken: false
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ .name }}
  labels: {{- include "isotherm.labels" . | nindent 4 }}
rules:
  - apiGroups: [""]
    resources: [pods, configmaps, persistentvolumeclaims]
    verbs: [get, list, watch, create, patch, delete, deletecollection]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ .name }}
  labels: {{- include "isotherm.labels" . | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: {{ .name }}
subjects:
  - kind: ServiceAccount
    name: {{ .name }}
    namespace: {{ .root.Release.Namespace }}
{{- end -}}
