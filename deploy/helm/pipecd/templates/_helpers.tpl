{{- define "pipecd.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "pipecd.fullname" -}}
{{- $name := include "pipecd.name" . }}
{{- $full := contains $name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $name) }}
{{- default $full .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "pipecd.selectorLabels" -}}
app.kubernetes.io/name: {{ include "pipecd.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "pipecd.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{ include "pipecd.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "pipecd.configMapName" -}}
{{- .Values.config.create | ternary (include "pipecd.fullname" .) .Values.config.name }}
{{- end }}

{{- define "pipecd.secretName" -}}
{{- .Values.secret.create | ternary (include "pipecd.fullname" .) .Values.secret.name }}
{{- end }}

{{- define "pipecd.serviceAccountName" -}}
{{- .Values.serviceAccount.create | ternary (include "pipecd.fullname" .) .Values.serviceAccount.name }}
{{- end }}

{{- /* The Redis of the replicas: that of the values, that of this chart, or none. */ -}}
{{- define "pipecd.cacheAddress" -}}
{{- if .Values.server.args.cacheAddress }}
{{- .Values.server.args.cacheAddress }}
{{- else if and .Values.cache.enabled (not .Values.persistence.enabled) }}
{{- if .Values.cache.password }}redis://:$(CACHE_PASSWORD)@{{ end }}
{{- include "pipecd.fullname" . }}-cache:6379
{{- end }}
{{- end }}

{{- /* The variable that arguments with the password of the cache refer to. */ -}}
{{- define "pipecd.cachePassword" -}}
{{- if .Values.cache.password }}
- name: CACHE_PASSWORD
  valueFrom:
    secretKeyRef: {name: {{ include "pipecd.secretName" . }}, key: cache-password}
{{- end }}
{{- end }}

{{- /* The networks of proxies in front of the server: those of the values, or private ones if there is a proxy. */ -}}
{{- define "pipecd.trustedProxies" -}}
{{- if .Values.server.args.trustedProxies }}
{{- join "," .Values.server.args.trustedProxies }}
{{- else if or .Values.gateway.enabled .Values.ingress.enabled }}
{{- print "10.0.0.0/8,172.16.0.0/12,192.168.0.0/16,fc00::/7" }}
{{- end }}
{{- end }}

{{- define "pipecd.image" -}}
{{- $repository := required "set server.image.repository to the repository of your registry with the image pipecd-server" .Values.server.image.repository }}
{{- printf "%s:%s" $repository (.Values.server.image.tag | default .Chart.AppVersion) }}
{{- end }}

{{- define "pipecd.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{- define "pipecd.pod" -}}
{{- with include "pipecd.serviceAccountName" . }}
serviceAccountName: {{ . }}
{{- end }}
automountServiceAccountToken: {{ if include "pipecd.serviceAccountName" . }}true{{ else }}false{{ end }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "pipecd.user" -}}
securityContext:
  runAsNonRoot: true
  runAsUser: 1000
  runAsGroup: 0
  fsGroup: 1000
  seccompProfile:
    type: RuntimeDefault
{{- end }}

{{- define "pipecd.probes" -}}
startupProbe:
  httpGet: {path: /healthz, port: admin}
  periodSeconds: 2
  failureThreshold: 60
livenessProbe:
  httpGet: {path: /healthz, port: admin}
readinessProbe:
  # Longer than the server waits for its stores.
  timeoutSeconds: 3
  httpGet: {path: /readyz, port: admin}
{{- end }}

{{- define "pipecd.mounts" -}}
- name: pipecd-secret
  mountPath: {{ .Values.secret.mountPath }}
  readOnly: true
- name: pipecd-config
  mountPath: /etc/pipecd-config
  readOnly: true
- name: tmp
  mountPath: /tmp
{{- end }}

{{- define "pipecd.volumes" -}}
- name: pipecd-secret
  secret:
    secretName: {{ include "pipecd.secretName" . }}
- name: pipecd-config
  configMap:
    name: {{ include "pipecd.configMapName" . }}
- name: tmp
  emptyDir: {}
{{- end }}

{{- define "pipecd.cloudSQLProxy" -}}
{{- if .Values.cloudSQLProxy.enabled }}
- name: cloud-sql-proxy
  image: "{{ .Values.cloudSQLProxy.image }}:{{ .Values.cloudSQLProxy.version }}"
  command:
    - /cloud_sql_proxy
    - -instances={{ .Values.cloudSQLProxy.args.instanceConnectionName }}=tcp:{{ .Values.cloudSQLProxy.args.port }}
    - -credential_file={{ .Values.secret.mountPath }}/{{ .Values.secret.cloudSQLServiceAccount.fileName }}
  securityContext:
    {{- include "pipecd.containerSecurity" . | nindent 4 }}
  resources:
    {{- toYaml .Values.cloudSQLProxy.resources | nindent 4 }}
  volumeMounts:
    - name: pipecd-secret
      mountPath: {{ .Values.secret.mountPath }}
      readOnly: true
{{- end }}
{{- end }}
