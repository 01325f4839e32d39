{{/* The KubeSchedulerConfiguration. */}}
{{- define "trimtab.schedulerConfiguration" -}}
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection:
  leaderElect: true
  resourceNamespace: {{ .Release.Namespace }}
  resourceName: trimtab-scheduler
clientConnection:
  qps: 500
  burst: 1000
profiles:
  - schedulerName: {{ .Values.binding.schedulerName }}
    percentageOfNodesToScore: 100
    plugins:
      postFilter:
        disabled:
          - name: "*"
  {{- range .Values.scheduler.beside }}
  - schedulerName: {{ . }}
  {{- end }}
extenders:
  - urlPrefix: https://trimtab-extender.{{ .Release.Namespace }}.svc
    filterVerb: filter
    preemptVerb: preempt
    enableHTTPS: true
    tlsConfig:
      insecure: false
      caFile: /etc/trimtab/tls/ca.crt
      certFile: /etc/trimtab/tls/tls.crt
      keyFile: /etc/trimtab/tls/tls.key
    httpTimeout: {{ mulf .Values.scheduler.extenderTimeoutSeconds 1000 | int }}ms
    nodeCacheCapable: true
    ignorable: false
    managedResources:
      {{- range list "nvidia.com/gpu" "amd.com/gpu" "gpu.intel.com/xe" "gpu.intel.com/i915" }}
      - name: {{ . }}
        ignoredByScheduler: false
      {{- end }}
{{- end }}
